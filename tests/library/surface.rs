//! What the crate shows, and what it refuses.

use crate::{LEASE, Place};
use leaderrun::{Error, Member};
use std::error::Error as _;
use std::io;
use std::time::Duration;

#[test]
fn only_the_library_is_shown_and_all_of_it_is_documented() {
    let root = include_str!("../../src/lib.rs");
    let lines: Vec<&str> = root.lines().collect();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub mod ")) {
        assert_eq!(lines[index - 1], "#[doc(hidden)]", "{line}");
    }
    assert!(include_str!("../../src/member.rs").contains("#![deny(missing_docs, "));
}

#[test]
fn what_is_shared_may_be_shared() {
    fn anywhere<T: Send + Sync + 'static>(_: &T) {}
    fn sent<T: Send>(_: T) {}
    sent(async {
        let member = Member::builder("file:/tmp", "shard").join().await?;
        anywhere(&member);
        anywhere(&member.watch());
        member.run(async |leadership| anywhere(&leadership)).await?;
        member.stop().await
    });
}

#[tokio::test]
async fn mistakes_are_reported_before_anything_begins_and_without_the_password() {
    let place = Place::local();
    let refused = async |builder: leaderrun::Builder| builder.join().await.expect_err("it is wrong");
    let error = refused(Member::builder("redi://me:Kiwi7Qx@host", "shard")).await;
    assert!(matches!(error, Error::Url(_)) && !error.to_string().contains("Kiwi7Qx"), "{error:?}");
    let error = refused(Member::builder(&place.url, "a shard")).await;
    assert!(matches!(&error, Error::Shard(message) if message.contains("' '")), "{error:?}");
    let error = refused(place.builder("one").owner("")).await;
    assert!(matches!(error, Error::Owner(_)), "{error:?}");
    let error = refused(place.builder("one").lease(LEASE).kill_after(Duration::from_secs(5))).await;
    assert!(matches!(&error, Error::Timing(message) if message.contains("kill-after 5s")), "{error:?}");
    let error = refused(place.builder("one").lease(Duration::ZERO)).await;
    assert!(matches!(&error, Error::Timing(message) if !message.contains("--")), "{error:?}");
    assert!(!format!("{:?}", Member::builder("redis://me:Kiwi7Qx@host", "shard")).contains("Kiwi7Qx"));
}

#[tokio::test]
async fn what_the_store_refuses_ends_the_wait() {
    let place = Place::local();
    let directory = place.fleet.scratch.path().join("store");
    std::fs::write(&directory, "not a directory").unwrap();
    let member = place.join("one").await;
    let error = member.leadership().await.expect_err("there is no directory");
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert_eq!(source(&error), Some(io::ErrorKind::NotADirectory));
    assert_eq!(member.stop().await, Err(error));
    assert!(!member.is_leader());
}

fn source(error: &Error) -> Option<io::ErrorKind> {
    error.source()?.downcast_ref().map(io::Error::kind)
}
