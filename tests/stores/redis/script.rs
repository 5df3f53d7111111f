//! What the script for documents compares.

use super::*;

const SCRIPT: &str =
    concat!(include_str!("../../../src/store/redis/call.lua"), include_str!("../../../src/store/redis/documents.lua"));

/// What the server says first to a script for the shard's document: done, refused or overtaken.
fn ask(server: &Server, words: &[&str]) -> String {
    let said = server.cli(&[&["EVAL", SCRIPT, "2", MARKER, LOCK], words].concat());
    said.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_write_applies_only_over_what_its_writer_read_and_in_the_same_life_of_the_server() {
    let server = old_server();
    let run = format!("{} {}", server.info("run_id"), server.info("master_replid"));
    // A write of the shard's document. `sequence` and `ends`: for one that judged a lease.
    let put = |name, run, over, [sequence, ends]: [&str; 2]| {
        ask(&server, &["put", "", name, run, over, sequence, ends, "text", "s-1", "7", "0", "60000", ""])
    };
    let over = |over, name| put(name, &run, over, ["", ""]);
    // An absence is one since a write of the marker.
    assert_eq!(over("", "w1"), "refused");
    assert_eq!(put("w1", "another", "aged", ["", ""]), "refused");
    assert_eq!(over("aged", "w1"), "done");
    assert_eq!(over("aged", "w1"), "done", "it is the same one");
    assert_eq!(over("aged", "w2"), "refused");
    assert_eq!(put("w2", "another", "w1", ["", ""]), "refused");
    let ends = server.cli(&["HGET", LOCK, "ends"]);
    assert_eq!(put("w2", &run, "w1", ["1", &ends]), "refused");
    assert_eq!(put("w2", &run, "w1", ["0", "1"]), "refused");
    assert_eq!(server.cli(&["HGET", LOCK, "write"]), "w1");
    assert_eq!(put("w2", &run, "w1", ["0", &ends]), "done");
    assert_eq!(server.cli(&["HGET", LOCK, "write"]), "w2");
    let touch = |session, term, sequence| ask(&server, &["touch", session, term, sequence, "60000"]);
    assert_eq!((touch("s-1", "7", "2"), touch("s-1", "7", "2")), ("done".to_owned(), "done".to_owned()));
    assert_eq!((touch("s-1", "7", "1"), touch("s-1", "8", "3")), ("overtaken".to_owned(), "refused".to_owned()));
    assert_eq!(touch("s-2", "7", "3"), "refused");
    assert_eq!(server.cli(&["HGET", LOCK, "sequence"]), "2");
    server.cli(&["FLUSHALL"]);
    assert_eq!(over("aged", "w3"), "refused", "who saw it absent saw another absence");
}
