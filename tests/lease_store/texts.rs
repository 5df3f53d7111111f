//! What stands in a document: members of later releases, later formats, and what other programs write.

use crate::memory::{Kept, Name, Style, Tells};
use crate::world::*;
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::lease_store::documents::{Content, Life};
use leaderrun::internals::store::{Administration, ErrorKind, Holder, Leases, Note, Notes, Page, Release, Renewal};
use serde_json::json;

/// Adds a member of a later release.
fn add_a_member(world: &World, name: &Name) {
    world.edit(|contents| {
        let kept = contents.get_mut(name).expect("it is there");
        let mut text: serde_json::Value = serde_json::from_str(&kept.text).unwrap();
        text["later"] = json!({ "more": [1, 2, u64::MAX] });
        kept.text = text.to_string();
    });
}

#[test]
fn members_of_a_later_release_survive_whatever_is_written() {
    each_led(ALL, |world, client, one, term| {
        now(client.store.release(&one, term)).unwrap();
        add_a_member(&world, &Name::Shard(shard()));
        let survives = |what: &str| assert_eq!(world.text()["later"]["more"][2], u64::MAX, "{what}");
        let client = world.client();
        let term = client.lead(&one);
        survives("a claim");
        assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
        survives("a renewal");
        client.order("pause");
        survives("orders");
        if world.lives() {
            world.server.restart();
            let older = world.server.contents();
            now(client.store.release(&one, term)).unwrap();
            let term = {
                advance(LEASE + SLACK);
                client.in_time(&one).0.term
            };
            world.fails_over(older);
            assert_eq!(client.renew(&one, term, 1), Renewal::Renewed);
            survives("a document that its leader wrote again");
            assert_eq!(now(client.store.release(&one, term)), Ok(Release::Released));
            survives("a release");
            return;
        }
        assert_eq!(now(client.store.revoke(&shard(), term)), Ok(Release::Released));
        survives("a revocation");
    });
}

#[test]
fn a_later_format_is_refused_by_name_and_never_replaced() {
    for style in ALL {
        for text in
            [r#"{"format":2,"shard":17}"#, "nonsense", "", r#"{"format":1,"shard":"other","term":1,"led_ms":1}"#]
        {
            let world = World::old(style);
            let client = world.client();
            world.write_foreign(None, text);
            let before = world.server.contents();
            let one = candidate("one");
            let note = Note::for_ever("x");
            let mut errors = vec![
                now(client.store.claim(&one)).unwrap_err(),
                now(client.store.observe(&shard())).unwrap_err(),
                now(client.store.renew(&one, leaderrun::internals::lease::Term(1), 1)).unwrap_err(),
                now(client.store.release(&one, leaderrun::internals::lease::Term(1))).unwrap_err(),
                now(client.store.revoke(&shard(), leaderrun::internals::lease::Term(1))).unwrap_err(),
            ];
            // Where they are a part of it.
            if style != LEASED {
                errors.push(now(client.store.read(&shard(), &Page::Orders)).unwrap_err());
                errors.push(now(client.store.replace(&shard(), &Page::Orders, None, Some(&note))).unwrap_err());
            }
            for error in errors {
                assert_eq!(error.kind, ErrorKind::Misconfigured, "{style:?} {error}");
                assert!(error.message.contains("db/main"), "{error}");
                assert!(!text.contains("format\":2") || error.message.contains("format is 2"), "{error}");
            }
            assert_eq!(world.server.contents(), before, "{style:?}");
            // It is listed as a holder, for it keeps every candidate from leading.
            let list = now(client.store.list("")).unwrap();
            assert!(list[0].1.holder.is_some(), "{style:?}");
        }
    }
}

#[test]
fn forget_deletes_notes_that_nobody_can_read() {
    each_led(ALL, |world, client, one, term| {
        world.edit(|contents| {
            for page in [Page::History, Page::Standby(Session::random().unwrap())] {
                let foreign = Some(Content::Unreadable("it is of an earlier release".to_owned()));
                let (text, leadership, sequence, ends, write) = Default::default();
                let kept = Kept { foreign, text, leadership, sequence, ends, write };
                contents.insert(Name::Note(shard(), page), kept);
            }
        });
        assert_eq!(now(client.store.forget(&one, term)), Ok(Release::Released));
        assert!(!world.server.contents().keys().any(|name| matches!(name, Name::Note(..))), "{:?}", world.style);
    });
}

#[test]
fn what_another_program_keeps_without_a_date_is_free_once_it_stood_unchanged() {
    let holder = Holder { owner: "their leader".to_owned(), ..Holder::default() };
    for style in [SCRIPTED, Style { tells: Tells::Nothing, ..STAMPING }] {
        let world = World::old(style);
        let client = world.client();
        let foreign = |sign: &str| Content::Foreign {
            holder: holder.clone(),
            sign: sign.to_owned(),
            life: Life::Unchanged { whole: LEASE },
        };
        for sign in ["1", "2", "3"] {
            world.write_foreign(Some(foreign(sign)), "");
            client.refused(&candidate("one"));
            // Its clock may be slow, and ours fast.
            advance(LEASE + seconds(1));
            client.refused(&candidate("one"));
        }
        let (_, took) = client.in_time(&candidate("one"));
        assert!(took < SLACK, "{style:?} {took:?}");
    }
}
