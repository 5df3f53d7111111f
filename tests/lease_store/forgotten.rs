//! A store that has forgotten: it restarted empty or behind, was wiped, was restored, or somebody deleted a document.

use crate::memory::{Name, Step, Style};
use crate::world::*;
use leaderrun::internals::lease::Candidate;
use leaderrun::internals::store::lease_store::documents::Marking;
use leaderrun::internals::store::{Administration, Doubt, ErrorKind, Leases, Release, Renewal};

#[test]
fn a_claim_that_crosses_a_failover_does_not_take_a_term_again() {
    each(LIVING, |world| {
        let (one, two) = (candidate("one"), candidate("two"));
        let client = world.client();
        client.leads_once(&one);
        // The replica has the release, and not what comes after it.
        let replica = world.server.contents();
        let (slow, quick) = (world.client(), world.client());
        now(slow.store.observe(&shard())).unwrap();
        let acknowledged = quick.lead(&two);
        let server = std::sync::Arc::clone(&world.server);
        slow.line.next(
            any_put,
            Fate::After(Box::new(move || {
                server.restart();
                server.restore(replica);
            })),
        );
        slow.refused(&one);
        assert_eq!(quick.renew(&two, acknowledged, 1), Renewal::Renewed);
        advance(LEASE + SLACK);
        let (grant, _) = slow.in_time(&one);
        assert!(grant.term > acknowledged && grant.start_after.is_none(), "{grant:?}");
    });
}

#[test]
fn a_claim_of_a_longer_lease_that_crosses_a_failover_makes_its_leader_wait() {
    each_led(LIVING, |world, client, one, term| {
        now(client.store.release(&one, term)).unwrap();
        let server = std::sync::Arc::clone(&world.server);
        client.line.next(put_of_led, Fate::After(Box::new(move || server.restart())));
        let grant = client.granted(&Candidate { lease: LEASE * 2, ..one });
        assert!(wait_of(&grant) > LEASE * 2 - seconds(1), "{grant:?}");
    });
}

#[test]
fn a_store_that_is_wiped_between_look_and_write_makes_its_next_leader_wait() {
    each(ALL, |world| {
        let client = world.client();
        // Another shard's leadership has shown the marker.
        let server = std::sync::Arc::clone(&world.server);
        client.line.next(put_of_shard, Fate::After(Box::new(move || server.wipe())));
        client.waits(&candidate("one"));
    });
}

#[test]
fn without_a_marker_where_only_an_operator_writes_it_leaders_lead_on_and_nobody_else_does() {
    let world = World::old(COMPARING);
    let (client, one, term) = leader(&world);
    world.server.wipe();
    assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
    assert_eq!(client.renew(&one, term, 2), Renewal::Renewed);
    let error = now(world.client().store.claim(&candidate("two"))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured);
}

#[test]
fn a_leader_outlives_a_failover_to_an_older_copy() {
    for style in LIVING {
        // Its own document of before, that of the leader before it, and that of nobody.
        for copy in 0..3 {
            let world = World::old(style);
            let mut copies = vec![world.server.contents()];
            let (before, zero) = (world.client(), candidate("zero"));
            let earlier = before.lead(&zero);
            copies.push(world.server.contents());
            now(before.store.release(&zero, earlier)).unwrap();
            let (client, one, term) = leader(&world);
            copies.push(world.server.contents());
            for sequence in 1..=7 {
                advance(seconds(1));
                assert_eq!(client.renew(&one, term, sequence), Renewal::Renewed);
            }
            world.fails_over(copies.remove(copy));
            let renewed = client.renew(&one, term, 8);
            if style == LEASED && copy == 1 {
                // Nothing is written beside a lease that the server says is alive.
                assert!(matches!(renewed, Renewal::Lost(Some(holder)) if holder.owner == "zero"));
                continue;
            }
            assert_eq!(renewed, Renewal::Renewed, "{style:?} {copy}");
            let standby = world.client();
            advance(LEASE - seconds(1));
            let holder = standby.refused(&candidate("two"));
            assert_eq!(holder.session, Some(one.session.clone()), "{style:?} {copy}: {holder:?}");
        }
    }
}

#[test]
fn terms_go_on_rising_after_a_failover_to_an_older_copy() {
    each(LIVING, |world| {
        let (client, one) = (world.client(), candidate("one"));
        let mut last = client.lead(&one);
        now(client.store.release(&one, last)).unwrap();
        let older = world.server.contents();
        for _ in 0..5 {
            last = client.lead(&one);
            now(client.store.release(&one, last)).unwrap();
        }
        world.fails_over(older);
        // Whoever comes now has seen none of them.
        let (grant, took) = world.client().in_time(&candidate("two"));
        assert!(grant.term > last && took >= LEASE, "{grant:?} after {last}");
    });
}

#[test]
fn the_lease_of_a_leader_that_writes_its_document_again_counts_from_what_it_sent() {
    for style in LIVING {
        for is_renewed in [false, true] {
            let world = World::old(style);
            let (client, one) = (world.client(), candidate("one"));
            let slowly = || Fate::After(Box::new(|| advance(seconds(10))));
            if !is_renewed {
                client.line.next(put_of_shard, slowly());
            }
            let term = client.lead(&one);
            if is_renewed {
                client.line.next(renewal, slowly());
                assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
            }
            advance(seconds(4));
            world.restarts_empty();
            assert_eq!(client.renew(&one, term, 2), Renewal::Lost(None), "{style:?} {is_renewed}");
        }
    }
}

#[test]
fn a_leader_that_has_released_does_not_write_its_document_again() {
    each_led(LIVING, |world, client, one, term| {
        now(client.store.release(&one, term)).unwrap();
        world.restarts_empty();
        assert_eq!(client.renew(&one, term, 1), Renewal::Lost(None));
        assert!(!world.server.contents().contains_key(&Name::Shard(shard())));
    });
}

#[test]
fn a_renewal_counts_in_the_life_of_the_server_that_the_marker_names_after_it() {
    for style in LIVING {
        let world = std::sync::Arc::new(World::old(style));
        let older = world.server.contents();
        let (client, one, term) = leader(&world);
        world.server.restart();
        // The renewal was applied, and then the server fails over to a copy without the document.
        let server = std::sync::Arc::clone(&world.server);
        let fails_over = move || {
            server.restart();
            server.restore(older);
        };
        client.line.next(|step| matches!(step, Step::Put(Name::Marker)), Fate::After(Box::new(fails_over)));
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed, "{style:?}");
        assert_eq!(world.text()["term"], term.0, "{style:?}");
    }
}

#[test]
fn a_shard_deleted_after_its_leader_wrote_it_again_makes_the_next_one_wait() {
    each_led(LIVING, |world, client, one, term| {
        world.restarts_empty();
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        // The marker is old when the document is deleted.
        for sequence in 2..10 {
            advance(seconds(3));
            assert_eq!(client.renew(&one, term, sequence), Renewal::Renewed);
        }
        world.delete();
        world.client().waits(&candidate("two"));
    });
}

#[test]
fn a_leadership_that_was_revoked_is_lost_however_young_the_store_is() {
    each_led(LIVING, |world, client, one, term| {
        world.server.restart();
        assert_eq!(now(world.client().store.revoke(&shard(), term)), Ok(Release::Released));
        assert_eq!(client.renew(&one, term, 1), Renewal::Revoked);
    });
}

#[test]
fn a_wait_outlives_the_leader_that_writes_itself_again() {
    for is_older in [false, true] {
        each([SCRIPTED, STAMPING], |world| {
            world.client().leads_once(&candidate("zero"));
            let older = world.server.contents();
            let long = Candidate { lease: LEASE * 4, ..candidate("one") };
            let term = world.client().lead(&long);
            assert_eq!(now(world.client().store.revoke(&shard(), term)), Ok(Release::Released));
            let (client, two) = (world.client(), candidate("two"));
            let grant = client.granted(&two);
            assert!(wait_of(&grant) > LEASE * 3, "{grant:?}");
            if is_older {
                world.server.restore(older);
            } else {
                world.restarts_empty();
                // It writes how long the longest lease was, and dies before it has written its document.
                client.line.next(put_of_led, Fate::After(Box::new(|| ())));
                client.line.next(put_of_shard, Fate::Lost);
            }
            assert_eq!(now(client.store.renew(&two, grant.term, 1)).is_ok(), is_older);
            let (grant, took) = world.client().in_time(&candidate("three"));
            assert!(took + wait_of(&grant) > LEASE * 3, "{grant:?}");
        });
    }
}

#[test]
fn a_shard_deleted_after_its_leader_was_disturbed_writing_it_again_makes_the_next_one_wait() {
    for is_disturbed in [put_of_led, put_of_shard] {
        each_led(LIVING, |world, client, one, term| {
            world.restarts_empty();
            client.line.next(is_disturbed, Fate::Lost);
            assert_eq!(now(client.store.renew(&one, term, 1)).unwrap_err().kind, ErrorKind::Unknown);
            // The marker is old when the document is deleted.
            for sequence in 2..10 {
                assert_eq!(client.renew(&one, term, sequence), Renewal::Renewed);
                advance(seconds(3));
            }
            world.delete();
            world.client().waits(&candidate("two"));
        });
    }
}

#[test]
fn a_store_that_forgot_a_leader_is_young_for_the_longest_lease_of_which_it_knows() {
    each(LIVING, |world| {
        let (client, long) = (world.client(), Candidate { lease: LEASE * 4, ..candidate("long") });
        client.leads_once(&long);
        let older = world.server.contents();
        client.lead(&long);
        world.fails_over(older);
        let (_, took) = world.client().in_time(&candidate("short"));
        assert!(took >= LEASE * 4, "{took:?}");
    });
}

/// The older copy knows of the longer lease, but not that the led mark does.
#[test]
fn a_store_that_forgot_a_leader_is_young_for_the_lease_that_stands_too() {
    each(LIVING, |world| {
        let (client, long) = (world.client(), Candidate { lease: LEASE * 4, ..candidate("long") });
        let copy = std::sync::Arc::new(std::sync::Mutex::default());
        let (server, taken) = (std::sync::Arc::clone(&world.server), std::sync::Arc::clone(&copy));
        client.line.next(put_of_led, Fate::After(Box::new(move || *taken.lock().unwrap() = server.contents())));
        let term = client.lead(&long);
        advance(LEASE * 3);
        assert_eq!(client.renew(&long, term, 1), Renewal::Renewed);
        world.fails_over(std::mem::take(&mut copy.lock().unwrap()));
        let (_, took) = world.client().in_time(&candidate("short"));
        assert!(took >= LEASE * 4, "{took:?}");
    });
}

#[test]
fn a_standby_that_knew_the_leader_is_refused_by_a_store_that_was_wiped() {
    each_led(LIVING, |world, client, one, term| {
        let standby = world.client();
        standby.refused(&candidate("two"));
        world.server.wipe();
        assert_eq!(standby.refused(&candidate("two")).doubt, Some(Doubt::Forgotten));
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
    });
}

#[test]
fn a_store_and_a_leader_that_die_together_cost_one_lease() {
    each(LIVING, |world| {
        let (_dead, _, term) = leader(&world);
        let standby = world.client();
        standby.refused(&candidate("two"));
        world.server.restart();
        // A look, and no claim.
        now(standby.store.observe(&shard())).unwrap();
        advance(LEASE + seconds(1));
        let (grant, took) = standby.in_time(&candidate("two"));
        assert!(grant.term > term && took < seconds(3), "{took:?}");
    });
}

#[test]
fn a_look_does_not_mark_where_looks_may_go_to_another_node() {
    let world = World::old(Style { marking: Marking::ByWriters, ..SCRIPTED });
    let (client, one, term) = leader(&world);
    let standby = world.client();
    now(standby.store.observe(&shard())).unwrap();
    let marker = || world.server.contents().get(&Name::Marker).unwrap().text.clone();
    let before = marker();
    world.server.restart();
    now(standby.store.observe(&shard())).unwrap();
    assert_eq!(marker(), before);
    assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
    assert_ne!(marker(), before);
}

#[test]
fn a_claim_at_a_server_that_the_marker_does_not_name_is_refused_however_old_the_marker_seems() {
    let world = World::new(Style { marking: Marking::ByWriters, ..SCRIPTED });
    let (client, one) = (world.client(), candidate("one"));
    client.refused(&one);
    // To the other server, whose clock is behind, the marker is still young.
    world.server.step(-5_000);
    advance(LEASE + seconds(1));
    world.server.answers_as(1);
    let marker = world.server.contents().get(&Name::Marker).unwrap().text.clone();
    client.refused(&one);
    assert_eq!(world.server.contents().get(&Name::Marker).unwrap().text, marker);
}

#[test]
fn a_marker_from_the_future_is_written_again() {
    each([SCRIPTED, STAMPING], |world| {
        let marker = format!(
            "{{\"format\":1,\"what\":\"\",\"created_ms\":{},\"incarnation\":\"life 0\"}}",
            world.server.now() + 86_400_000
        );
        world.edit(|contents| contents.get_mut(&Name::Marker).unwrap().text = marker.clone());
        world.client().refused(&candidate("one"));
        assert_ne!(world.server.contents().get(&Name::Marker).unwrap().text, marker);
        let (_, took) = world.client().in_time(&candidate("one"));
        assert!(took < LEASE + SLACK, "{took:?}");
    });
}

/// The older copy names another leader, whose lease has ended by then.
#[test]
fn a_leader_outlives_an_earlier_lease_in_a_restored_document_unless_a_late_renewal_prolongs_it() {
    for is_prolonged in [false, true] {
        let world = World::old(SCRIPTED);
        let (before, zero, earlier) = leader(&world);
        before.line.next(renewal, Fate::Late);
        now(before.store.renew(&zero, earlier, 1)).unwrap_err();
        let led = world.server.contents();
        advance(LEASE - seconds(1));
        now(before.store.release(&zero, earlier)).unwrap();
        let (client, one, term) = leader(&world);
        advance(seconds(3));
        world.server.restore(led);
        if !is_prolonged {
            assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
            continue;
        }
        let line = before.line.clone();
        client.line.next(put_of_shard, Fate::After(Box::new(move || line.deliver())));
        let Renewal::Lost(Some(holder)) = client.renew(&one, term, 1) else { panic!("it leads beside zero") };
        assert_eq!(holder.session, Some(zero.session));
    }
}

#[test]
fn a_wait_that_an_older_copy_got_outlives_the_leader_that_writes_itself_again() {
    each(DATED, |world| {
        let (before, zero, earlier) = leader(&world);
        let led = world.server.contents();
        now(before.store.release(&zero, earlier)).unwrap();
        let (client, one, term) = leader(&world);
        world.server.restore(led);
        assert_eq!(now(world.client().store.revoke(&shard(), earlier)), Ok(Release::Released));
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        assert!(world.text()["wait"].is_object(), "{}", world.text());
    });
}

#[test]
fn an_older_copy_of_a_leaders_document_ends_no_lease_for_who_saw_later_renewals() {
    each(DATED, |world| {
        let (client, one, term) = leader(&world);
        let (standby, two) = (world.client(), candidate("two"));
        let older = world.server.contents();
        for sequence in 1..=8 {
            advance(LEASE / 4);
            assert_eq!(client.renew(&one, term, sequence), Renewal::Renewed);
        }
        now(standby.store.observe(&shard())).unwrap();
        world.server.restore(older);
        standby.refused(&two);
        assert_eq!(client.renew(&one, term, 9), Renewal::Renewed);
        let (grant, took) = standby.in_time(&two);
        assert!(grant.term > term && took >= LEASE - SLACK, "{took:?} {grant:?}");
    });
}

#[test]
fn a_lower_term_that_a_look_showed_is_read_again_before_it_is_believed() {
    each(ALL, |world| {
        let (client, one, first) = leader(&world);
        now(client.store.release(&one, first)).unwrap();
        let older = world.server.contents();
        let term = client.leads_once(&one);
        let standby = world.client();
        now(standby.store.observe(&shard())).unwrap();
        // The next look is behind.
        let newer = world.server.contents();
        world.server.restore(older);
        now(standby.store.observe(&shard())).unwrap();
        world.server.restore(newer);
        assert!(standby.lead(&candidate("two")) > term);
    });
}

#[test]
fn a_store_that_forgets_again_makes_who_saw_it_wait_again() {
    each(ALL, |world| {
        let (client, one, first) = leader(&world);
        now(client.store.release(&one, first)).unwrap();
        let yesterday = world.server.contents();
        let mut last = first;
        let standby = world.client();
        for _ in 0..2 {
            last = client.in_time(&one).0.term.max(last);
            // A look is enough to know.
            now(standby.store.observe(&shard())).unwrap();
            world.server.restore(yesterday.clone());
            let (grant, took) = standby.in_time(&candidate("two"));
            assert!(took >= LEASE && grant.term > last, "{took:?} {grant:?} after {last}");
            last = grant.term;
            advance(LEASE + SLACK);
        }
    });
}

#[test]
fn a_release_over_an_older_copy_leaves_the_term_that_it_ends() {
    each(DATED, |world| {
        let (client, one, first) = leader(&world);
        let older = world.server.contents();
        let mut term = first;
        for _ in 0..5 {
            now(client.store.release(&one, term)).unwrap();
            term = client.lead(&one);
        }
        world.server.restore(older);
        assert_eq!(now(client.store.release(&one, term)), Ok(Release::Released));
        // Whoever comes now has seen none of them, and no time tells.
        world.server.step(-3_600_000);
        let (grant, _) = world.client().in_time(&candidate("two"));
        assert!(grant.term > term, "{grant:?} after {term}");
    });
}

#[test]
fn a_longer_lease_that_was_known_is_waited_for() {
    each(ALL, |world| {
        let long = Candidate { lease: LEASE * 4, ..candidate("long") };
        let client = world.client();
        client.leads_once(&long);
        let (short, one) = (world.client(), candidate("short"));
        let term = short.lead(&one);
        world.delete();
        let grant = world.client().granted(&candidate("next"));
        assert!(grant.term > term && wait_of(&grant) > LEASE * 4 - seconds(1), "{grant:?}");
        // Its successor may not be the first to have it, and still waits for it.
        advance(LEASE + SLACK);
        let (grant, _) = world.client().in_time(&candidate("after"));
        assert!(wait_of(&grant) > LEASE * 2, "{grant:?}");
        advance(LEASE * 4 + UNTIL_A_WALL_CLOCK_KNOWS);
        let (grant, _) = world.client().in_time(&candidate("last"));
        // Its leaders died before they said that it was over.
        assert_eq!(grant.start_after.is_some(), world.style == LEASED);
    });
}

#[test]
fn who_saw_a_leader_waits_for_it_though_its_led_mark_is_deleted_too() {
    each(ALL, |world| {
        let (_, _, term) = leader(&world);
        let standby = world.client();
        standby.refused(&candidate("two"));
        world.edit(|contents| contents.retain(|name, _| *name == Name::Marker));
        let grant = standby.waits(&candidate("two"));
        assert!(grant.term > term, "{grant:?}");
    });
}

#[test]
fn a_deleted_leader_is_waited_for_by_who_comes_after_a_claim_that_did_not_get_as_far() {
    each(ALL, |world| {
        world.client().lead(&Candidate { lease: LEASE * 4, ..candidate("long") });
        world.delete();
        // It took the document, and has not told anybody of the led mark.
        let client = world.client();
        client.line.next(put_of_led, Fate::Lost);
        now(client.store.claim(&candidate("two"))).unwrap_err();
        advance(LEASE + SLACK);
        let (grant, _) = world.client().in_time(&candidate("three"));
        assert!(wait_of(&grant) > LEASE * 2, "{grant:?}");
    });
}

#[test]
fn a_led_mark_that_cannot_be_read_says_that_the_shard_was_led() {
    each(ALL, |world| {
        leader(&world);
        world.edit(|contents| contents.get_mut(&Name::Led(shard())).unwrap().text = "nonsense".to_owned());
        world.delete();
        world.client().waits(&candidate("two"));
    });
}

#[test]
fn what_concludes_something_is_no_read_that_may_be_behind() {
    use crate::memory::Step;
    for style in ALL {
        let world = World::old(style);
        let (client, one) = (world.client(), candidate("one"));
        let is_behind = |client: &Client| {
            let steps = client.line.steps();
            steps.iter().any(|step| matches!(step, Step::Get { may_be_behind: true, .. }))
        };
        let term = client.lead(&one);
        client.renew(&one, term, 1);
        world.delete();
        client.renew(&one, term, 2);
        client.in_time(&one);
        now(client.store.inspect(&shard())).unwrap();
        now(client.store.revoke(&shard(), term)).unwrap();
        client.order("pause");
        assert!(!is_behind(&client), "{style:?}");
        now(client.store.observe(&shard())).unwrap();
        assert!(is_behind(&client), "{style:?}");
    }
}

#[test]
fn who_waits_for_the_tree_of_an_earlier_leader_gives_way_once_that_one_has_written_itself_again() {
    each_led(LIVING, |world, client, one, term| {
        world.delete();
        let (next, two) = (world.client(), candidate("two"));
        let grant = next.waits(&two);
        advance(seconds(5));
        world.server.wipe();
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        assert!(matches!(next.renew(&two, grant.term, 1), Renewal::Lost(Some(_))));
        assert_eq!(client.renew(&one, term, 2), Renewal::Renewed);
    });
}

#[test]
fn a_claim_after_a_look_that_took_long_has_a_term_of_now_too() {
    each_led(ALL, |world, client, one, term| {
        now(client.store.release(&one, term)).unwrap();
        let standby = world.client();
        standby.line.next(|step| matches!(step, Step::Get { .. }), Fate::After(Box::new(|| advance(seconds(20)))));
        now(standby.store.observe(&shard())).unwrap();
        let term = standby.lead(&candidate("two"));
        assert!(term.0 < world.server.now() + 8_000, "{term} at {}", world.server.now());
    });
}
