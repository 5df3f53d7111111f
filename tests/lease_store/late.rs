//! Requests that arrive late, twice or never, answers that are lost, and writes that cross.

use crate::memory::{Name, Step, Tells};
use crate::world::*;
use futures_util::FutureExt;
use leaderrun::internals::lease::{Session, Shard, Term};
use leaderrun::internals::store::{
    Administration, ErrorKind, Leases, Note, Notes, Observation, Page, Release, Renewal,
};

#[test]
fn a_late_release_does_not_end_a_later_leadership() {
    each(ALL, |world| {
        let (client, one) = (world.client(), candidate("one"));
        let old = client.lead(&one);
        client.line.next(put_of_shard, Fate::Late);
        assert_eq!(now(client.store.release(&one, old)).unwrap_err().kind, ErrorKind::Unknown);
        assert_eq!(now(client.store.release(&one, old)), Ok(Release::Released));
        let term = client.lead(&one);
        client.line.deliver();
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        // Nor does one that is sent for the old term, by whoever gives back what a dead process left.
        assert_eq!(now(world.client().store.release(&one, old)), Ok(Release::NotHeld));
        assert_eq!(now(world.client().store.forget(&one, old)), Ok(Release::NotHeld));
        assert_eq!(client.renew(&one, term, 2), Renewal::Renewed);
        assert_eq!(now(world.client().store.release(&one, Term(0))), Ok(Release::Released));
    });
}

#[test]
fn a_renewal_and_an_operator_do_not_refuse_each_other() {
    each_led(ALL, |world, client, one, term| {
        client.line.steps();
        let operator = world.client();
        client.line.next(renewal, Fate::After(Box::new(move || operator.order("pause"))));
        let renewed = now(client.store.renew_and_read(&one, term, 1, &[shard()])).unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        assert_eq!(renewed.orders.unwrap()[0].as_ref().map(|note| note.text.as_str()), Some("pause"));
        // Where the server can only compare, an operator costs two more trips.
        assert_eq!(client.line.steps().len(), if world.style.touches { 1 } else { 3 });
        // The other way round.
        let (operator, session) = (world.client(), one.clone());
        operator.orders();
        operator.line.steps();
        operator.line.next(
            put_of_orders,
            Fate::After(Box::new(move || assert_eq!(client.renew(&session, term, 2), Renewal::Renewed))),
        );
        operator.order("resume");
        let puts = operator.line.steps().iter().filter(|step| put_of_orders(step)).count();
        assert_eq!(puts, if world.style.touches { 1 } else { 2 });
    });
}

#[test]
fn renewals_that_arrive_out_of_order_only_go_forward() {
    each_led(ALL, |world, client, one, term| {
        advance(seconds(1));
        client.line.next(renewal, Fate::Late);
        now(client.store.renew(&one, term, 1)).unwrap_err();
        advance(seconds(1));
        assert_eq!(client.renew(&one, term, 3), Renewal::Renewed);
        assert_eq!(client.renew(&one, term, 2), Renewal::Overtaken);
        assert_eq!(world.client().renew(&one, term, 2), Renewal::Overtaken);
        let before = world.server.contents();
        client.line.deliver();
        assert_eq!(world.server.contents(), before);
        assert_eq!(client.renew(&one, term, 4), Renewal::Renewed);
    });
}

#[test]
fn a_takeover_does_not_apply_over_a_lease_that_a_late_renewal_has_just_prolonged() {
    each_led(ALL, |world, client, one, term| {
        client.line.next(renewal, Fate::Late);
        now(client.store.renew(&one, term, 1)).unwrap_err();
        let standby = world.client();
        standby.refused(&candidate("two"));
        advance(LEASE + SLACK);
        let line = client.line.clone();
        standby.line.next(put_of_shard, Fate::After(Box::new(move || line.deliver())));
        if world.style == LEASED {
            // It brings nothing to a lease that the server has ended.
            standby.lead(&candidate("two"));
            assert!(matches!(client.renew(&one, term, 2), Renewal::Lost(Some(_))));
        } else if world.style.touches || world.style.tells == Tells::Millis {
            let holder = standby.refused(&candidate("two"));
            assert_eq!(holder.session, Some(one.session.clone()));
            assert_eq!(client.renew(&one, term, 2), Renewal::Renewed);
        } else {
            // The end that it brings has passed as well, but it is looked at.
            standby.granted(&candidate("two"));
            assert_eq!(standby.line.steps().iter().filter(|step| put_of_shard(step)).count(), 2);
            assert!(matches!(client.renew(&one, term, 2), Renewal::Lost(Some(_))));
        }
    });
}

#[test]
fn a_claim_whose_lease_ended_before_it_was_complete_leaves_the_next_leaders_document_alone() {
    each(ALL, |world| {
        let (client, other, two) = (world.client(), world.client(), candidate("two"));
        let session = two.session.clone();
        let between = move || {
            advance(LEASE + SLACK);
            other.in_time(&two);
        };
        client.line.next(put_of_led, Fate::After(Box::new(between)));
        assert_eq!(client.refused(&candidate("one")).session, Some(session));
    });
}

#[test]
fn a_request_that_arrives_twice_counts_once() {
    each(ALL, |world| {
        let (client, one) = (world.client(), candidate("one"));
        client.line.next(put_of_shard, Fate::Twice);
        let term = client.lead(&one);
        client.line.steps();
        client.line.next(renewal, Fate::Twice);
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        assert_eq!(client.line.steps().len(), 1);
        client.line.next(put_of_shard, Fate::Twice);
        assert_eq!(now(client.store.release(&one, term)), Ok(Release::Released));
        // The led mark of a shared document says first that the tree is dead.
        assert_eq!(client.line.steps().len(), 1 + usize::from(world.style.is_shared));
    });
}

/// Otherwise a candidate that is told to stop would leave its lease there.
#[test]
fn a_claim_that_fails_after_it_took_the_lease_may_have_been_applied() {
    for style in ALL {
        for (refused, puts) in [(put_of_led as fn(&Step) -> bool, 0), (put_of_shard, 1)] {
            let world = World::old(style);
            let client = world.client();
            for _ in 0..puts {
                client.line.next(refused, Fate::After(Box::new(|| {})));
            }
            client.line.next(refused, Fate::Refused);
            let error = now(client.store.claim(&candidate("one"))).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unknown, "{style:?} {puts}");
            assert!(world.server.contents()[&Name::Shard(shard())].leadership.is_some());
        }
    }
}

#[test]
fn a_copy_of_the_last_renewal_does_not_prolong_the_lease_of_a_leader_that_died() {
    each_led(ALL, |world, client, one, term| {
        client.line.next(renewal, Fate::Copied);
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        // Orders keep the sequence.
        world.client().order("pause");
        let before = world.server.contents();
        advance(seconds(10));
        client.line.deliver();
        assert_eq!(world.server.contents(), before);
    });
}

#[test]
fn a_renewal_of_an_earlier_term_is_no_loss_of_a_later_one() {
    each(ALL, |world| {
        let (client, one) = (world.client(), candidate("one"));
        let old = client.lead(&one);
        let term = client.lead(&one);
        assert_eq!(client.renew(&one, old, 1), Renewal::Overtaken);
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
    });
}

#[test]
fn a_renewal_that_hangs_waits_for_nothing_once_a_later_one_replaced_what_it_was_to_replace() {
    each_led([COMPARING, STAMPING], |_, client, one, term| {
        client.line.next(renewal, Fate::Hangs);
        let mut first = std::pin::pin!(client.store.renew(&one, term, 1));
        assert_eq!(first.as_mut().now_or_never(), None);
        assert_eq!(client.renew(&one, term, 2), Renewal::Renewed);
        assert_eq!(now(first), Ok(Renewal::Overtaken));
    });
}

#[test]
fn a_renewal_whose_answer_was_lost_is_recognised() {
    each_led(ALL, |world, client, one, term| {
        client.line.next(renewal, Fate::Unheard);
        now(client.store.renew(&one, term, 1)).unwrap_err();
        client.line.steps();
        assert_eq!(client.renew(&one, term, 2), Renewal::Renewed);
        // Where the server can only compare, it looks first.
        assert_eq!(client.line.steps().len(), if world.style.touches { 1 } else { 2 });
        client.line.next(renewal, Fate::Refused);
        assert_eq!(now(client.store.renew(&one, term, 3)).unwrap_err().kind, ErrorKind::NotApplied);
        client.line.next(renewal, Fate::Lost);
        assert_eq!(now(client.store.renew(&one, term, 4)).unwrap_err().kind, ErrorKind::Unknown);
        assert_eq!(client.renew(&one, term, 5), Renewal::Renewed);
    });
}

#[test]
fn orders_of_other_shards_come_with_a_renewal_and_do_it_no_harm() {
    each_led(ALL, |world, client, one, term| {
        let parent: Shard = "db".parse().unwrap();
        let operator = world.client();
        let note = Note::for_ever("pause all");
        assert_eq!(now(operator.store.replace(&parent, &Page::Orders, None, Some(&note))), Ok(true));
        client.line.steps();
        let shards = [parent.clone(), shard()];
        let renewed = now(client.store.renew_and_read(&one, term, 1, &shards)).unwrap();
        assert_eq!(renewed.orders, Some(vec![Some(note), None]));
        assert_eq!(client.line.steps().len(), if world.style.touches { 1 } else { 2 });
        if !world.style.touches {
            client.line.next(|step| matches!(step, Step::Get { .. }), Fate::Refused);
            let renewed = now(client.store.renew_and_read(&one, term, 2, &shards)).unwrap();
            assert_eq!((renewed.renewal, renewed.orders), (Renewal::Renewed, None));
        }
    });
}

#[test]
fn two_processes_with_one_owner_are_two() {
    each(ALL, |world| {
        let (client, one) = (world.client(), candidate("same"));
        let term = client.lead(&one);
        let other = leaderrun::internals::lease::Candidate { session: Session::random().unwrap(), ..one.clone() };
        let stranger = world.client();
        assert!(matches!(stranger.renew(&other, term, 9), Renewal::Lost(Some(_))));
        assert_eq!(now(stranger.store.release(&other, term)), Ok(Release::NotHeld));
        stranger.refused(&other);
    });
}

#[test]
fn a_standby_hears_of_a_release_and_of_nothing_else() {
    each([SCRIPTED, LEASED], |world| {
        let (client, one, standby) = (world.client(), candidate("one"), world.client());
        let term = client.lead(&one);
        standby.refused(&candidate("two"));
        let shards = [shard(), "other".parse().unwrap()];
        soon(async {
            let mut wait = std::pin::pin!(standby.store.changed(&shards[0]));
            let quiet = std::time::Duration::from_millis(20);
            assert!(tokio::time::timeout(quiet, &mut wait).await.is_err());
            assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
            world.client().order("nothing for standbys");
            assert!(tokio::time::timeout(quiet, &mut wait).await.is_err());
            now(client.store.release(&one, term)).unwrap();
            wait.await.unwrap();
        });
        // What came before it listened is not missed, and it says which of several it was.
        assert_eq!(soon(standby.store.any_changed(&shards)), Ok(0));
        standby.line.steps();
        let term = standby.lead(&candidate("two"));
        assert_eq!(standby.line.steps().len(), 1, "it has seen what stands");
        assert_eq!(soon(standby.store.any_changed(&shards)), Ok(1));
        if world.style == LEASED {
            // What was revoked there is free only once the server has ended the lease.
            return;
        }
        soon(async {
            let mut wait = std::pin::pin!(client.store.changed(&shards[0]));
            assert!(tokio::time::timeout(std::time::Duration::from_millis(20), &mut wait).await.is_err());
            assert_eq!(now(world.client().store.revoke(&shard(), term)), Ok(Release::Released));
            wait.await.unwrap();
        });
    });
}

#[test]
fn what_was_pushed_is_as_good_as_a_standbys_look_and_nothing_else_relies_on_it() {
    let world = World::old(crate::memory::Style { pushes_documents: true, ..SCRIPTED });
    let (client, one, standby) = (world.client(), candidate("one"), world.client());
    let term = client.lead(&one);
    standby.refused(&candidate("two"));
    soon(async {
        let shard = shard();
        let mut wait = std::pin::pin!(standby.store.changed(&shard));
        tokio::time::timeout(std::time::Duration::from_millis(20), &mut wait).await.unwrap_err();
        // What is pushed now is not heard yet.
        now(client.store.release(&one, term)).unwrap();
        assert!(matches!(now(standby.store.observe(&shard)), Ok(Observation::Held(_))));
        assert_eq!(now(standby.store.inspect(&shard)).unwrap().holder, None);
    });
}

/// Otherwise it would claim without a pause.
#[test]
fn a_standby_of_a_store_that_may_have_forgotten_hears_of_nothing() {
    for style in LIVING {
        // A store that nobody used yet, and one that restarted beside a dead leader.
        for is_led in [false, true] {
            let world = if is_led { World::old(style) } else { World::new(style) };
            let standby = world.client();
            if is_led {
                world.client().lead(&candidate("one"));
                standby.refused(&candidate("two"));
                advance(LEASE + SLACK);
                world.server.restart();
            }
            standby.refused(&candidate("two"));
            assert!(matches!(now(standby.store.observe(&shard())), Ok(Observation::Held(_))), "{style:?}");
            soon(async {
                let shard = shard();
                let wait = tokio::time::timeout(std::time::Duration::from_millis(20), standby.store.changed(&shard));
                wait.await.expect_err("nobody may lead yet")
            });
        }
    }
}
