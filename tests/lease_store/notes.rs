//! Notes and announcements: what they cost, and what is deleted.

use crate::memory::{Name, Step};
use crate::world::*;
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::{Administration, Note, Notes, Page, Release};
use std::time::Duration;

fn announcement() -> Page {
    Page::Standby(Session::random().unwrap())
}

fn text(client: &Client, page: &Page) -> Option<String> {
    now(client.store.read(&shard(), page)).unwrap().map(|note| note.text)
}

#[test]
fn a_note_that_this_process_wrote_is_replaced_with_one_request() {
    each(ALL, |world| {
        let (client, page) = (world.client(), announcement());
        let write = |before: Option<&str>, text: &str| {
            let note = Note::lasting(text.to_owned(), Some(LEASE));
            now(client.store.replace(&shard(), &page, before, Some(&note)))
        };
        assert_eq!(write(None, "0"), Ok(true));
        client.line.steps();
        for number in 1..5 {
            advance(seconds(5));
            assert_eq!(write(Some(&(number - 1).to_string()), &number.to_string()), Ok(true));
            assert_eq!(client.line.steps().len(), 1);
        }
        assert_eq!(now(client.store.replace(&shard(), &page, Some("4"), None)), Ok(true));
        assert_eq!(client.line.steps().len(), 1);
        assert_eq!(now(client.store.standbys("")), Ok(Vec::new()));
    });
}

#[test]
fn a_note_is_replaced_only_where_the_expected_text_stands() {
    each(ALL, |world| {
        let (client, other) = (world.client(), world.client());
        for page in [Page::Orders, Page::History, Page::Runs, announcement(), Page::Once("job".parse().unwrap())] {
            let replace = |client: &Client, before: Option<&str>, after: Option<&str>| {
                let draft = after.map(Note::for_ever);
                now(client.store.replace(&shard(), &page, before, draft.as_ref())).unwrap()
            };
            assert!(!replace(&client, Some("one"), Some("two")));
            assert!(replace(&client, None, None));
            assert!(replace(&client, None, Some("one")));
            assert!(!replace(&other, None, Some("two")));
            assert!(replace(&other, Some("one"), Some("two")));
            // What this process wrote last does not stand any more.
            assert!(!replace(&client, Some("one"), Some("three")));
            assert_eq!(text(&client, &page).as_deref(), Some("two"), "{page:?}");
            assert!(replace(&client, Some("two"), None));
            assert_eq!(text(&other, &page), None, "{page:?}");
        }
    });
}

#[test]
fn announcements_are_deleted_long_after_their_end_and_nothing_else_ever() {
    let removed = |client: &Client| {
        let steps = client.line.steps();
        steps.into_iter().filter(|step| matches!(step, Step::Remove(_))).collect::<Vec<_>>()
    };
    for style in [SCRIPTED, COMPARING, STAMPING] {
        let world = World::old(style);
        let client = world.client();
        let (gone, here, kept) = (announcement(), announcement(), Page::History);
        for (page, lasts) in [(&gone, LEASE), (&here, LEASE * 100), (&kept, LEASE)] {
            let note = Note::lasting("note".to_owned(), Some(lasts));
            assert_eq!(now(client.store.replace(&shard(), page, None, Some(&note))), Ok(true));
        }
        advance(LEASE + Duration::from_mins(9));
        assert_eq!(now(client.store.standbys("db")).unwrap().len(), 1, "{style:?}");
        assert_eq!(removed(&client), []);
        advance(Duration::from_mins(2));
        assert_eq!(now(client.store.standbys("")).unwrap().len(), 1, "{style:?}");
        assert_eq!(removed(&client), [Step::Remove(Name::Note(shard(), gone))], "{style:?}");
        assert_eq!(now(client.store.standbys("dc")), Ok(Vec::new()));
        // Whatever else ends, or is removed, is an empty text.
        let note = Note::for_ever("runs");
        assert_eq!(now(client.store.replace(&shard(), &Page::Runs, None, Some(&note))), Ok(true));
        assert_eq!(now(client.store.replace(&shard(), &Page::Runs, Some("runs"), None)), Ok(true));
        assert_eq!(removed(&client), []);
        let one = candidate("one");
        let term = client.lead(&one);
        assert_eq!(now(client.store.forget(&one, term)), Ok(Release::Released));
        assert_eq!(removed(&client), [Step::Remove(Name::Note(shard(), here))], "{style:?}");
        assert!(world.server.contents().contains_key(&Name::Note(shard(), kept)));
    }
}
