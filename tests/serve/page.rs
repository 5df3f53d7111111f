//! The page, in a real browser.

use crate::browser::Browser;
use crate::server::Serve;
use crate::support::fleet::{Fleet, leaderctl, leaderrun, wait_until};
use crate::support::place::usual_but;
use crate::support::redis::Server as Redis;
use crate::support::server::Server as _;
use crate::support::world::TIMING;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// What the page says of the shard.
fn row(browser: &Browser) -> String {
    let text = browser.evaluate("document.getElementById('s-shard')?.innerText ?? ''");
    text.as_str().unwrap().replace(['\n', '\t'], " ")
}

/// When the page asked for itself, in milliseconds.
fn asked_at(browser: &Browser) -> Vec<f64> {
    let script =
        "performance.getEntriesByType('resource').filter(it => it.initiatorType == 'fetch').map(it => it.startTime)";
    serde_json::from_value(browser.evaluate(script)).unwrap()
}

/// Waits until the API of `serve` knows it, and then for the page: one question may be under way, and the next one, a
/// second later, brings it. How long that takes is up to the machine.
fn shown_within_two_seconds(
    what: &str,
    serve: &Serve,
    browser: &Browser,
    known: impl Fn(&Value) -> bool,
    row_has: &str,
) {
    serve.wait_for(what, || known(&serve.shard("shard")));
    let before = asked_at(browser).len();
    let shown = || (asked_at(browser).len() - before, row(browser).contains(row_has));
    wait_until(what, || {
        // What the page has asked is counted before it is looked at.
        let (asked, is_shown) = shown();
        assert!(is_shown || asked <= 2, "{what}: after {asked} questions the page says: {}", row(browser));
        is_shown
    });
}

/// What a page must never take for more than text.
const EVIL: &str = "<script>document.title='stolen'</script>\"'><img src=x onerror=alert(1)>";

/// Nothing in the page of `path` came to life, and it is shown as it is written.
fn assert_is_text(serve: &Serve, browser: &Browser, path: &str) {
    browser.go(&serve.url(path));
    let living = ["document.scripts.length", "document.images.length"].map(|count| browser.evaluate(count));
    assert_eq!(living, [1, 0].map(Value::from), "{path}");
    assert_ne!(browser.evaluate("document.title"), "stolen", "{path}");
    assert!(browser.text().contains("onerror=alert(1)"), "{path}: {}", browser.text());
}

#[test]
fn a_killed_leader_and_a_pause_show_within_two_seconds_without_reloading_and_names_are_text() {
    let server = Redis::start();
    let mut fleet = Fleet::new();
    let url = server.own_url();
    let on = |host| [&["--host", host, "--store", &url][..], &usual_but(&TIMING, &["--lease", "30s"])].concat();
    let serve = Serve::start(&url, &[]);
    let browser = Browser::open(&serve.url("/"));
    browser.evaluate("window.stays = 7");
    fleet.start_as(leaderrun(), "one", &on("db1"), &[], &[]);
    shown_within_two_seconds("one leads", &serve, &browser, |shard| shard["host"] == "db1", "db1");
    fleet.start_as(leaderrun(), "two", &on(EVIL), &[], &[]);
    shown_within_two_seconds("two waits", &serve, &browser, |shard| shard["standbys"] == 1, "led");
    fleet.kill("one");
    shown_within_two_seconds("two leads", &serve, &browser, |shard| shard["host"] == EVIL, EVIL);
    let words = ["--store", &url, "pause", "shard", "--reason", EVIL];
    assert!(leaderctl().args(words).output().unwrap().status.success());
    let paused = |shard: &Value| shard["condition"] == "paused" && shard["held"] == false;
    shown_within_two_seconds("it is paused", &serve, &browser, paused, EVIL);
    assert_eq!(browser.evaluate("window.stays"), 7, "the page was loaded again");
    let least = asked_at(&browser).windows(2).map(|pair| pair[1] - pair[0]).fold(f64::MAX, f64::min);
    assert!(least < 2000.0, "it asks every {least} ms at best");
    // What a visitor asks for is text as well.
    let search = format!("/?q={}", utf8_percent_encode(EVIL, NON_ALPHANUMERIC));
    for path in ["/", "/shards/shard", &search] {
        assert_is_text(&serve, &browser, path);
    }
    assert_eq!(browser.errors(), [""; 0]);
    fleet.conclude();
}
