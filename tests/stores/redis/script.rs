//! What the script for documents compares.

use super::*;

const SCRIPT: &str =
    concat!(include_str!("../../../src/store/redis/call.lua"), include_str!("../../../src/store/redis/documents.lua"));

/// What the server says first to a script for the shard's document: done, refused or overtaken.
fn ask(server: &Server, words: &[&str]) -> String {
    let said = server.cli(&[&["EVAL", SCRIPT, "2", MARKER, LOCK], words].concat());
    said.lines().next().unwrap_or_default().to_owned()
}

/// A write of the shard's document, over this version. `judged`: the sequence and the end, for one that judged a lease.
struct Write<'a> {
    run: &'a str,
    over: &'a str,
    judged: (&'a str, &'a str),
}

impl Write<'_> {
    fn apply(&self, server: &Server, name: &str) -> String {
        let (sequence, ends) = self.judged;
        ask(server, &["put", "", name, self.run, self.over, sequence, ends, "text", "s-1", "7", "0", "60000", ""])
    }
}

#[test]
fn a_write_applies_only_over_what_its_writer_read_and_in_the_same_life_of_the_server() {
    let server = old_server();
    let run = format!("{} {}", server.info("run_id"), server.info("master_replid"));
    let over = |over| Write { run: &run, over, judged: ("", "") };
    // An absence is one since a write of the marker.
    assert_eq!(over("").apply(&server, "w1"), "refused");
    assert_eq!(Write { run: "another", ..over("aged") }.apply(&server, "w1"), "refused");
    assert_eq!(over("aged").apply(&server, "w1"), "done");
    assert_eq!(over("aged").apply(&server, "w1"), "done", "it is the same one");
    assert_eq!(over("aged").apply(&server, "w2"), "refused");
    assert_eq!(Write { run: "another", ..over("w1") }.apply(&server, "w2"), "refused");
    let ends = server.cli(&["HGET", LOCK, "ends"]);
    assert_eq!(Write { judged: ("1", &ends), ..over("w1") }.apply(&server, "w2"), "refused");
    assert_eq!(Write { judged: ("0", "1"), ..over("w1") }.apply(&server, "w2"), "refused");
    assert_eq!(server.cli(&["HGET", LOCK, "write"]), "w1");
    assert_eq!(Write { judged: ("0", &ends), ..over("w1") }.apply(&server, "w2"), "done");
    assert_eq!(server.cli(&["HGET", LOCK, "write"]), "w2");
    let touch = |session, term, sequence| ask(&server, &["touch", session, term, sequence, "60000"]);
    assert_eq!((touch("s-1", "7", "2"), touch("s-1", "7", "2")), ("done".to_owned(), "done".to_owned()));
    assert_eq!((touch("s-1", "7", "1"), touch("s-1", "8", "3")), ("overtaken".to_owned(), "refused".to_owned()));
    assert_eq!(touch("s-2", "7", "3"), "refused");
    assert_eq!(server.cli(&["HGET", LOCK, "sequence"]), "2");
    server.cli(&["FLUSHALL"]);
    assert_eq!(over("aged").apply(&server, "w3"), "refused", "who saw it absent saw another absence");
}
