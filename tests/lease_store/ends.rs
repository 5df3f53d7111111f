//! Ends and waits: on the server's clock, and what a candidate's own clock adds to that.

use crate::memory::{Name, Style, Tells};
use crate::world::*;
use leaderrun::internals::lease::Candidate;
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::{
    Administration, Doubt, Leases, Note, Notes, Observation, Page, Release, Renewal, Takeover,
};

#[test]
fn a_server_clock_that_is_set_forward_ends_no_lease() {
    each_led([SCRIPTED, COMPARING, STAMPING], |world, client, one, term| {
        advance(seconds(3));
        let (standby, two) = (world.client(), candidate("two"));
        standby.refused(&two);
        // The standby does not see this renewal.
        advance(seconds(1));
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        world.server.step(3_600_000);
        advance(seconds(2));
        let (grant, took) = standby.in_time(&two);
        assert!(grant.term > term);
        assert!(took + seconds(2) >= LEASE, "{took:?} after it was set");
        assert!(took < LEASE + SLACK, "{took:?}");
    });
}

#[test]
fn a_lease_that_was_seen_to_have_ended_does_not_live_again_when_the_clock_is_set_back() {
    each_led([SCRIPTED, COMPARING, STAMPING], |world, client, one, term| {
        let standby = world.client();
        standby.refused(&candidate("two"));
        advance(seconds(5));
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        advance(LEASE + SLACK);
        assert_eq!(now(standby.store.observe(&shard())), Ok(Observation::Free));
        let listed = now(world.client().store.list("")).unwrap().remove(0).1;
        assert_eq!((listed.holder, listed.last_term), (None, Some(term)));
        world.server.step(-3_600_000);
        assert_eq!(now(standby.store.observe(&shard())), Ok(Observation::Free));
        assert!(standby.lead(&candidate("two")) > term);
    });
}

#[test]
fn a_lease_that_looks_as_the_one_before_is_another_one() {
    each_led(ALL, |world, client, one, term| {
        let standby = world.client();
        standby.refused(&candidate("two"));
        advance(seconds(10));
        // The same session, and again without a renewal.
        now(client.store.release(&one, term)).unwrap();
        let term = client.lead(&one);
        advance(seconds(8));
        standby.refused(&candidate("two"));
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
    });
}

#[test]
fn our_wall_clock_delays_a_takeover_where_a_date_judges_and_never_hastens_one() {
    let world = World::old(COMPARING);
    world.client().lead(&candidate("one"));
    // Whoever starts now sees no contradiction.
    world.server.step(3_600_000);
    let (_, took) = world.client().in_time(&candidate("two"));
    assert!(took >= LEASE && took < LEASE + SLACK, "{took:?}");
}

#[test]
fn a_revoked_lease_is_lost_and_nobody_starts_before_it_would_have_ended() {
    each(ALL, |world| {
        let (client, one, operator) = (world.client(), candidate("one"), world.client());
        let term = client.lead(&one);
        advance(seconds(4));
        assert_eq!(
            now(operator.store.revoke(&shard(), leaderrun::internals::lease::Term(term.0 + 1))),
            Ok(Release::NotHeld)
        );
        // Its last renewal arrives between the operator's look and the operator's write.
        let session = one.clone();
        operator.line.next(
            put_of_shard,
            Fate::After(Box::new(move || assert_eq!(client.renew(&session, term, 1), Renewal::Renewed))),
        );
        assert_eq!(now(operator.store.revoke(&shard(), term)), Ok(Release::Released));
        assert_eq!(now(operator.store.revoke(&shard(), term)), Ok(Release::NotHeld));
        assert_eq!(world.client().renew(&one, term, 2), Renewal::Revoked);
        let report = || now(world.client().store.inspect(&shard())).unwrap();
        let left_behind = report().holder.expect("its tree may run");
        assert!(left_behind.term.is_none() && left_behind.expires_in > Some(LEASE - seconds(2)), "{left_behind:?}");
        advance(seconds(1));
        // It is granted with a wait, or refused until then.
        let (next, two) = (world.client(), candidate("two"));
        let (grant, took) = next.in_time(&two);
        let start = took + wait_of(&grant);
        assert!(grant.term > term && grant.takeover == Takeover::Revoked, "{grant:?}");
        assert!(start >= LEASE - seconds(1) - seconds(1) && start <= LEASE + SLACK, "{start:?}");
        assert_eq!(world.client().renew(&one, term, 3), Renewal::Revoked, "though another took it");
        // That is over with the next release.
        assert_eq!(now(next.store.release(&two, grant.term)), Ok(Release::Released));
        assert_eq!(world.client().in_time(&one).0.takeover, Takeover::Released);
    });
}

#[test]
fn a_wait_for_a_second_revoked_leader_is_not_taken_for_the_wait_for_the_first() {
    each([SCRIPTED, COMPARING, STAMPING, SHARED], |world| {
        let (first, operator, standby) = (world.client(), world.client(), world.client());
        let term = first.lead(&candidate("one"));
        now(operator.store.observe(&shard())).unwrap();
        // The operator sees the server's clock jump, so the end of this wait is far ahead.
        world.server.step(3_600_000);
        assert_eq!(now(operator.store.revoke(&shard(), term)), Ok(Release::Released));
        world.server.step(-3_600_000);
        let report = now(standby.store.inspect(&shard())).unwrap();
        assert!(report.holder.is_some_and(|left_behind| left_behind.term.is_none()), "its tree may run");
        let (second, two, three) = (world.client(), candidate("two"), candidate("three"));
        let (grant, _) = second.in_time(&two);
        // Until the first wait is over by its age.
        for sequence in 1..=8 {
            advance(seconds(5));
            assert_eq!(second.renew(&two, grant.term, sequence), Renewal::Renewed);
        }
        assert_eq!(now(world.client().store.revoke(&shard(), grant.term)), Ok(Release::Released));
        let (next, took) = standby.in_time(&three);
        assert!(took + wait_of(&next) > LEASE - seconds(1), "{took:?} {next:?}");
    });
}

#[test]
fn a_wait_passes_from_one_leader_to_the_next_whatever_happens_in_between() {
    each(DATED, |world| {
        let long = Candidate { lease: LEASE * 8, ..candidate("one") };
        let term = world.client().lead(&long);
        let operator = world.client();
        assert_eq!(now(operator.store.revoke(&shard(), term)), Ok(Release::Released));
        let ends = LEASE * 8;
        // Orders.
        operator.order("pause");
        // A leadership that has not started anything, and is given back.
        advance(LEASE);
        let (client, two) = (world.client(), candidate("two"));
        let grant = client.granted(&two);
        assert!(wait_of(&grant) >= ends - LEASE, "{grant:?}");
        assert_eq!(client.renew(&two, grant.term, 1), Renewal::Renewed);
        assert_eq!(now(client.store.release(&two, grant.term)), Ok(Release::Released));
        let report = |store: &LeaseStore| now(store.inspect(&shard())).unwrap();
        let left_behind = report(&world.client().store).holder.expect("its tree may run");
        assert_eq!(left_behind.doubt, Some(Doubt::Revoked));
        assert!(left_behind.expires_in > Some(ends - LEASE * 2), "{left_behind:?}");
        // One that crashes.
        let grant = world.client().granted(&candidate("three"));
        assert!(wait_of(&grant) >= ends - LEASE, "{grant:?}");
        advance(LEASE + SLACK);
        let (client, four) = (world.client(), candidate("four"));
        let (grant, _) = client.in_time(&four);
        assert!(wait_of(&grant) >= ends - LEASE * 4, "{grant:?}");
        // One that forgets the shard.
        assert_eq!(now(client.store.forget(&four, grant.term)), Ok(Release::Released));
        let (client, five) = (world.client(), candidate("five"));
        let grant = client.granted(&five);
        assert!(wait_of(&grant) >= ends - LEASE * 4, "{grant:?}");
        // One that is revoked itself.
        assert_eq!(now(operator.store.revoke(&shard(), grant.term)), Ok(Release::Released));
        let (client, six) = (world.client(), candidate("six"));
        let grant = client.granted(&six);
        assert!(wait_of(&grant) >= ends - LEASE * 4, "{grant:?}");
        assert_eq!(now(client.store.release(&six, grant.term)), Ok(Release::Released));
        // Until it is over for everybody.
        advance(ends + UNTIL_A_WALL_CLOCK_KNOWS);
        assert_eq!(report(&world.client().store).holder, None);
        world.client().lead(&candidate("seven"));
    });
}

#[test]
fn a_wait_that_looks_as_the_one_before_is_another_one() {
    each(DATED, |world| {
        let (client, two) = (world.client(), candidate("two"));
        for _ in 0..2 {
            let one = candidate("one");
            let (grant, _) = world.client().in_time(&one);
            assert_eq!(grant.start_after, None);
            assert_eq!(now(world.client().store.revoke(&shard(), grant.term)), Ok(Release::Released));
            let grant = client.waits(&two);
            now(client.store.release(&two, grant.term)).unwrap();
            advance(LEASE + UNTIL_A_WALL_CLOCK_KNOWS);
        }
    });
}

#[test]
fn a_lease_that_the_server_has_ended_is_not_renewed_and_not_waited_for() {
    let world = World::old(LEASED);
    let (client, one, term) = leader(&world);
    let standby = world.client();
    standby.refused(&candidate("two"));
    advance(LEASE + seconds(1));
    assert_eq!(client.renew(&one, term, 1), Renewal::Lost(None));
    // A renewal writes nothing, so an old look shows the same document. The server compares.
    assert!(standby.lead(&candidate("two")) > term);
    advance(LEASE + seconds(1));
    let other = world.client();
    assert_eq!(now(other.store.observe(&shard())), Ok(Observation::Free));
    other.line.steps();
    other.lead(&candidate("three"));
    assert_eq!(other.line.steps().len(), 1, "what the server has ended does not live again");
}

/// The clock of the host that wrote the wait says nothing to others.
#[test]
fn a_wait_without_a_clock_lasts_from_when_it_was_seen_until_its_leader_says_that_it_is_over() {
    let world = World::old(LEASED);
    leader(&world);
    world.delete();
    let (next, two) = (world.client(), candidate("two"));
    let grant = next.granted(&two);
    let mut sequence = 0;
    let mut renew = || {
        sequence += 1;
        assert_eq!(next.renew(&two, grant.term, sequence), Renewal::Renewed);
    };
    for _ in 0..2 {
        advance(seconds(5));
        renew();
        assert_ne!(world.text()["wait"], serde_json::Value::Null);
    }
    advance(seconds(6));
    renew();
    assert_eq!(world.text()["wait"], serde_json::Value::Null);
    assert_eq!(now(next.store.release(&two, grant.term)), Ok(Release::Released));
    world.client().lead(&candidate("three"));
}

#[test]
fn an_end_written_by_a_wrong_clock_is_written_again() {
    for is_claim in [true, false] {
        let world = World::old(Style { tells: Tells::Seconds, ..STAMPING });
        let (client, one) = (world.client(), candidate("one"));
        // It knows that the store remembers, whatever dates say.
        now(client.store.observe(&shard())).unwrap();
        advance(LEASE * 2);
        let term = (!is_claim).then(|| client.lead(&one));
        // The answer is the first to show that the server is an hour ahead.
        let server = std::sync::Arc::clone(&world.server);
        client.line.next(put_of_shard, Fate::After(Box::new(move || server.step(3_600_000))));
        match term {
            None => drop(client.granted(&one)),
            Some(term) => assert_eq!(client.renew(&one, term, 1), Renewal::Renewed),
        }
        let ends = world.server.contents().get(&Name::Shard(shard())).unwrap().ends.unwrap();
        assert!(ends >= world.server.now() + 15_000, "{is_claim} {ends}");
    }
}

#[test]
fn an_end_that_the_server_wrote_by_its_own_clock_is_not_written_again() {
    each_led([SCRIPTED, STAMPING], |world, client, one, term| {
        client.line.steps();
        let server = std::sync::Arc::clone(&world.server);
        client.line.next(renewal, Fate::After(Box::new(move || server.step(3_600_000))));
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        assert_eq!(client.line.steps().len(), 1);
    });
}

#[test]
fn a_note_ends_after_its_time_and_not_before() {
    each([SCRIPTED, COMPARING, STAMPING, LEASED], |world| {
        let client = world.client();
        let note = Note::lasting("soon over".to_owned(), Some(LEASE));
        for page in [Page::Orders, Page::History] {
            assert_eq!(now(client.store.replace(&shard(), &page, None, Some(&note))), Ok(true));
            advance(LEASE - seconds(1));
            let read = now(world.client().store.read(&shard(), &page)).unwrap();
            assert_eq!(read.map(|note| note.text).as_deref(), Some("soon over"), "{page:?}");
            advance(seconds(1) + SLACK);
            assert_eq!(now(world.client().store.read(&shard(), &page)), Ok(None), "{page:?}");
            // What has ended is not in the way.
            assert_eq!(now(client.store.replace(&shard(), &page, None, Some(&note))), Ok(true), "{page:?}");
        }
    });
}
