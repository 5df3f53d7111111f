//! Documents that other programs replace and delete: the led mark keeps what would be lost with them.

use crate::memory::{Name, Step};
use crate::world::*;
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::lease_store::documents::{Content, Life};
use leaderrun::internals::store::{
    Administration, ErrorKind, Holder, Leases, Note, Notes, Observation, Page, Release, Renewal,
};
use std::sync::Arc;
use std::time::Duration;

/// The lease of another program, which ends so long after now.
fn held_by_another(world: &World, left: Duration) -> Content {
    let ends = world.server.now() + u64::try_from(left.as_millis()).unwrap();
    let holder = Holder { owner: "another".to_owned(), ..Holder::default() };
    Content::Foreign { holder, sign: "1".to_owned(), life: Life::Ends(ends) }
}

/// Another program takes the lease that is free, and ends in good order: it deletes what it knows.
fn another_leads_and_releases(world: &World) {
    world.write_foreign(Some(held_by_another(world, LEASE)), "");
    advance(seconds(1));
    world.delete();
}

fn paused(world: &World) -> Client {
    let operator = world.client();
    operator.order("pause --keep");
    operator
}

#[test]
fn a_claim_that_is_denied_halfway_does_not_say_that_an_earlier_tree_is_dead() {
    let world = World::old(SHARED);
    leader(&world);
    world.delete();
    let denied = world.client();
    denied.line.next(|step| matches!(step, Step::Get { names, .. } if names[..] == [Name::Marker]), Fate::Denied);
    assert_eq!(now(denied.store.claim(&candidate("two"))).unwrap_err().kind, ErrorKind::Denied);
    let (grant, took) = world.client().in_time(&candidate("three"));
    assert!(took + wait_of(&grant) > LEASE - seconds(1), "{grant:?} after {took:?}");
}

#[test]
fn a_claim_that_is_made_again_takes_no_term_of_a_leader_whose_document_was_deleted() {
    let world = World::old(SHARED);
    leader(&world);
    world.delete();
    // Its term is ahead of the time.
    let (client, two) = (world.client(), candidate("two"));
    let (grant, _) = client.in_time(&two);
    // It releases once its wait is over, so it leaves no doubt.
    for sequence in 1..6 {
        advance(seconds(4));
        assert_eq!(client.renew(&two, grant.term, sequence), Renewal::Renewed);
    }
    assert_eq!(now(client.store.release(&two, grant.term)), Ok(Release::Released));
    world.delete();
    let (client, three) = (world.client(), candidate("three"));
    client.line.next(put_of_led, Fate::Refused);
    now(client.store.claim(&three)).unwrap_err();
    let again = client.in_time(&three).0;
    assert!(again.term > grant.term, "{again:?} after {grant:?}");
}

#[test]
fn orders_are_given_and_taken_back_while_another_program_leads_and_leave_its_document_alone() {
    let world = World::old(SHARED);
    let theirs = held_by_another(&world, LEASE);
    world.write_foreign(Some(theirs.clone()), "");
    let operator = paused(&world);
    assert_eq!(operator.orders().as_deref(), Some("pause --keep"));
    assert_eq!(world.server.get(&[Name::Shard(shard())])[0].content, theirs);
    let change = |expected, draft: Option<&str>| {
        let note = draft.map(Note::for_ever);
        now(operator.store.replace(&shard(), &Page::Orders, expected, note.as_ref()))
    };
    assert_eq!(change(None, Some("other")), Ok(false));
    assert_eq!(change(Some("pause --keep"), None), Ok(true));
    assert_eq!(operator.orders(), None);
    assert_eq!(change(None, Some("pause --keep")), Ok(true));
    world.delete();
    let leader = world.client();
    leader.lead(&candidate("one"));
    assert_eq!(leader.orders().as_deref(), Some("pause --keep"));
}

#[test]
fn an_order_that_crosses_the_claim_over_another_programs_lease_is_not_lost() {
    let world = World::old(SHARED);
    world.write_foreign(Some(held_by_another(&world, Duration::ZERO)), "");
    advance(seconds(90));
    let client = world.client();
    let operator = world.client();
    // The operator has seen that another program leads.
    let between = move || operator.order("pause --keep");
    client.line.next(put_of_shard, Fate::After(Box::new(between)));
    let (grant, _) = client.in_time(&candidate("one"));
    assert_eq!(world.client().orders().as_deref(), Some("pause --keep"), "{grant:?}");
}

#[test]
fn of_two_operators_who_cross_the_led_mark_keeps_what_the_document_says() {
    let world = World::old(SHARED);
    let (client, one, term) = leader(&world);
    let (first, second) = (world.client(), world.client());
    first.line.next(put_of_led, Fate::After(Box::new(move || second.order("second"))));
    first.order("first");
    let orders = world.client().orders();
    assert_eq!(now(client.store.release(&one, term)), Ok(Release::Released));
    another_leads_and_releases(&world);
    assert_eq!(world.client().orders(), orders);
    assert_eq!(orders.as_deref(), Some("second"));
}

#[test]
fn orders_that_the_led_mark_does_not_keep_yet_may_have_been_applied() {
    let world = World::old(SHARED);
    leader(&world);
    let operator = world.client();
    operator.line.next(put_of_led, Fate::Refused);
    let note = Note::for_ever("pause");
    let error = now(operator.store.replace(&shard(), &Page::Orders, None, Some(&note))).unwrap_err();
    assert_eq!((error.kind, operator.orders().as_deref()), (ErrorKind::Unknown, Some("pause")));
}

#[test]
fn who_gives_up_while_it_has_to_wait_leaves_a_document_that_holds_others_off() {
    let world = World::old(SHARED);
    leader(&world);
    world.delete();
    let (client, two) = (world.client(), candidate("two"));
    let grant = client.waits(&two);
    assert_eq!(now(client.store.release(&two, grant.term)), Ok(Release::Released));
    let kept = world.server.contents()[&Name::Shard(shard())].clone();
    let left = kept.ends.unwrap().saturating_sub(world.server.now());
    assert!(Duration::from_millis(left) > LEASE - seconds(1), "{left}");
    // And the tree may still run if the document vanishes.
    world.delete();
    world.client().waits(&candidate("three"));
}

#[test]
fn a_release_after_a_takeover_does_not_call_the_next_tree_dead() {
    let world = World::old(SHARED);
    let (client, one, term) = leader(&world);
    advance(LEASE + SLACK);
    world.client().in_time(&candidate("two"));
    assert_eq!(now(client.store.release(&one, term)), Ok(Release::NotHeld));
    world.delete();
    world.client().waits(&candidate("three"));
}

#[test]
fn a_document_that_its_leader_wrote_again_has_the_orders_of_the_led_mark_and_its_term_there() {
    let world = World::old(SHARED);
    let (client, one, term) = leader(&world);
    let operator = paused(&world);
    world.delete();
    world.server.restart();
    assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
    assert_eq!(operator.orders().as_deref(), Some("pause --keep"));
    world.restarts_empty();
    assert_eq!(client.renew(&one, term, 2), Renewal::Renewed);
    world.delete();
    let report = now(world.client().store.inspect(&shard())).unwrap();
    assert_eq!(report.last_term, Some(term));
}

#[test]
fn a_renewal_does_not_say_that_a_shard_whose_document_is_gone_has_no_orders() {
    let world = World::old(SHARED);
    let (client, one, term) = leader(&world);
    let shards = ["db".parse().unwrap(), shard()];
    let renewed = now(client.store.renew_and_read(&one, term, 1, &shards)).unwrap();
    assert_eq!((renewed.renewal, renewed.orders), (Renewal::Renewed, None));
}

#[test]
fn a_list_shows_a_shard_whose_document_is_gone_unless_it_is_forgotten() {
    let world = World::old(SHARED);
    let (client, one, term) = leader(&world);
    assert_eq!(now(client.store.release(&one, term)), Ok(Release::Released));
    let last_term = |client: &Client| {
        let list = now(client.store.list("")).unwrap();
        list.into_iter().map(|(_, report)| report.last_term).collect::<Vec<Option<Term>>>()
    };
    assert_eq!(last_term(&client), [Some(term)]);
    another_leads_and_releases(&world);
    assert_eq!(last_term(&client), [Some(term)]);
    world.write_foreign(Some(held_by_another(&world, LEASE)), "");
    assert_eq!(last_term(&client), [Some(term)], "while another program leads");
    world.delete();
    let term = client.lead(&one);
    assert_eq!(now(client.store.forget(&one, term)), Ok(Release::Released));
    assert_eq!(last_term(&client), []);
    another_leads_and_releases(&world);
    assert_eq!(last_term(&client), []);
    assert!(client.lead(&one) > term);
}

#[test]
fn a_lease_of_another_program_ends_by_a_date_that_is_agreed_on_or_after_it_stood_long_unchanged() {
    let world = World::old(SHARED);
    let (client, one) = (world.client(), candidate("one"));
    world.write_foreign(Some(held_by_another(&world, seconds(10))), "");
    assert!(matches!(now(client.store.observe(&shard())), Ok(Observation::Held(holder)) if holder.owner == "another"));
    let (_, took) = client.in_time(&one);
    assert!(took >= seconds(10) && took < seconds(60) + SLACK, "{took:?}");
    // The clock jumps ahead of it.
    let world = World::old(SHARED);
    let client = world.client();
    world.write_foreign(Some(held_by_another(&world, seconds(100))), "");
    client.refused(&one);
    world.server.step(3_600_000);
    let (_, took) = client.in_time(&one);
    assert!(took > seconds(59), "{took:?}");
}

#[test]
fn a_leader_does_not_write_itself_over_a_lease_that_another_program_took_in_a_wiped_store() {
    let world = World::old(SHARED);
    let (client, one, term) = leader(&world);
    world.server.wipe();
    world.write_foreign(Some(held_by_another(&world, LEASE)), "");
    let renewal = client.renew(&one, term, 1);
    assert!(matches!(&renewal, Renewal::Lost(Some(holder)) if holder.owner == "another"), "{renewal:?}");
}

#[test]
fn a_claim_whose_document_is_deleted_before_the_led_mark_names_it_leads_nobody() {
    let world = World::old(SHARED);
    let (client, one, term) = leader(&world);
    assert_eq!(now(client.store.release(&one, term)), Ok(Release::Released));
    let (server, other) = (Arc::clone(&world.server), world.client());
    let between = move || {
        let mut contents = server.contents();
        contents.remove(&Name::Shard(shard()));
        server.restore(contents);
        other.lead(&candidate("two"));
    };
    client.line.next(put_of_led, Fate::After(Box::new(between)));
    client.refused(&one);
}

/// As `kubectl apply` of a Lease that was exported does.
#[test]
fn who_takes_an_older_copy_of_a_document_waits_for_the_tree_that_the_led_mark_says() {
    for is_released in [false, true] {
        let world = World::old(SHARED);
        let (before, zero, earlier) = leader(&world);
        assert_eq!(now(before.store.release(&zero, earlier)), Ok(Release::Released));
        let older = world.server.contents().remove(&Name::Shard(shard())).expect("there is a document");
        let (client, one, term) = leader(&world);
        if is_released {
            assert_eq!(now(client.store.release(&one, term)), Ok(Release::Released));
        }
        world.edit(|contents| drop(contents.insert(Name::Shard(shard()), older)));
        let (next, two) = (world.client(), candidate("two"));
        let grant = next.granted(&two);
        assert!(grant.term > term, "{grant:?} after {term}");
        assert_eq!(wait_of(&grant) > LEASE - seconds(1), !is_released, "{grant:?}");
        assert_eq!(next.renew(&two, grant.term, 1), Renewal::Renewed);
        assert_eq!(now(next.store.release(&two, grant.term)), Ok(Release::Released));
        // That one started nothing: what it waited for is waited for by the next one.
        let after = world.client().granted(&candidate("three"));
        assert!(after.term > grant.term, "{after:?} after {grant:?}");
        assert_eq!(wait_of(&after) > LEASE - seconds(1), !is_released, "{after:?}");
    }
}
