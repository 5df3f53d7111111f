//! The page, in a real browser.

use crate::browser::Browser;
use crate::planted::{HOUR, Planted, entry};
use crate::server::Serve;
use crate::support::fleet::{Fleet, leaderctl, leaderrun, wait_until};
use crate::support::place::usual_but;
use crate::support::redis::Server as Redis;
use crate::support::server::Server as _;
use crate::support::world::TIMING;
use leaderrun::internals::election::{CommandEnd, Ended, Loss};
use leaderrun::internals::time::wall_clock_millis;
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

#[test]
fn a_killed_leader_and_a_pause_show_within_two_seconds_without_reloading() {
    let server = Redis::start();
    let mut fleet = Fleet::new();
    let url = server.own_url();
    let on = |host| [&["--host", host, "--store", &url][..], &usual_but(&TIMING, &["--lease", "30s"])].concat();
    let serve = Serve::start(&url, &[]);
    let browser = Browser::open(&serve.url("/"));
    browser.evaluate("window.stays = 7");
    fleet.start_as(leaderrun(), "one", &on("db1"), &[], &[]);
    shown_within_two_seconds("one leads", &serve, &browser, |shard| shard["host"] == "db1", "db1");
    fleet.start_as(leaderrun(), "two", &on("db2"), &[], &[]);
    shown_within_two_seconds("two waits", &serve, &browser, |shard| shard["standbys"] == 1, "led");
    fleet.kill("one");
    shown_within_two_seconds("two leads", &serve, &browser, |shard| shard["host"] == "db2", "db2");
    let words = ["--store", &url, "pause", "shard", "--reason", "<script>alert(1)</script>"];
    assert!(leaderctl().args(words).output().unwrap().status.success());
    let paused = |shard: &Value| shard["condition"] == "paused" && shard["held"] == false;
    shown_within_two_seconds("it is paused", &serve, &browser, paused, "<script>alert(1)</script>");
    assert_eq!(browser.evaluate("window.stays"), 7, "the page was loaded again");
    assert_eq!(browser.evaluate("document.scripts.length"), 1);
    assert_eq!(browser.errors(), [""; 0]);
    let least = asked_at(&browser).windows(2).map(|pair| pair[1] - pair[0]).fold(f64::MAX, f64::min);
    assert!(least < 2000.0, "it asks every {least} ms at best");
    fleet.conclude();
}

/// 200 shards on six hosts, some of them in trouble.
fn plant(url: &str) -> Planted {
    let planted = Planted::open(url);
    let now = wall_clock_millis();
    let hosts = ["app-01", "app-02", "app-03", "db-eu-1", "db-eu-2", "queue-7.internal.example"];
    let kinds = ["billing/invoices", "billing/dunning", "mail/outbox", "search/index", "metrics/rollup"];
    for number in 0..200_u64 {
        let at = |step: u64| hosts[usize::try_from(number + step).unwrap() % hosts.len()];
        let shard = format!("{}/{:03}", kinds[usize::try_from(number).unwrap() % kinds.len()], number);
        let minutes = |minutes: u64| now - minutes * 60_000 - number * 1_000;
        let mut history = vec![
            entry(1, at(0), minutes(900), Some((minutes(300), &Ended::SteppedDown))),
            entry(2, at(1), minutes(299), Some((minutes(55), &Ended::Asked(15)))),
            entry(3, at(2), minutes(54), Some((minutes(30), &Ended::Relinquished))),
        ];
        let last = at(3);
        let exited = |status| Ended::ByItself(CommandEnd::Exited(status));
        let mut ended = |how: Option<(u64, &Ended)>| {
            history.push(entry(planted.led(&shard, last).0, last, minutes(29), how));
        };
        match number {
            3 | 77 => ended(None),
            11 => ended(Some((minutes(6), &Ended::Lost(Loss::DeadlinePassed)))),
            42 | 142 => {
                ended(Some((minutes(12), &Ended::Paused)));
                planted.pause(&shard, "database migration, back at noon");
            }
            60 => ended(Some((minutes(12), &exited(0)))),
            _ => {
                history.push(entry(
                    4,
                    last,
                    minutes(29),
                    Some((minutes(15), &Ended::ByItself(CommandEnd::Signalled(9)))),
                ));
                history.push(entry(5, at(4), minutes(14), Some((minutes(9), &exited(3)))));
                let term = planted.lead(&shard, last, &format!("{last}-4711-a1b2c3"));
                history.push(entry(term.0, last, minutes(8), None));
            }
        }
        planted.history(&shard, &history);
    }
    planted
}

#[test]
fn two_hundred_shards_are_legible_in_light_dark_narrow_and_on_paper() {
    let server = Redis::start();
    let url = server.own_url();
    plant(&url);
    let serve = Serve::start(&url, &[]);
    serve.wait_for("the notes are read", || {
        serve.shard("mail/outbox/142")["paused"] == true && serve.shard("mail/outbox/042")["paused"] == true
            || serve.get("/").matches("database migration").count() == 2
    });
    let browser = Browser::open("about:blank");
    for (name, width, height, scheme, path) in [
        ("light", 1280, 900, "light", "/?range=1d"),
        ("dark", 1280, 900, "dark", "/"),
        ("narrow", 400, 900, "light", "/"),
        ("half", 820, 700, "light", "/"),
        ("shard", 1280, 700, "light", "/shards/billing/invoices/000?range=1d"),
    ] {
        browser.window(width, height, scheme);
        browser.go(&serve.url(path));
        browser.picture(name);
        let wider = browser.evaluate("document.documentElement.scrollWidth - window.innerWidth");
        assert!(wider.as_i64() <= Some(0), "{name} is wider than the window by {wider}");
    }
    browser.paper(794, 1100);
    browser.go(&serve.url("/?range=6h"));
    browser.picture("paper");
    assert_eq!(browser.evaluate("getComputedStyle(document.querySelector('form')).display"), "none");
    browser.window(1280, 900, "light");
    browser.go(&serve.url("/"));
    assert_eq!(browser.evaluate("document.querySelectorAll('#shards tbody tr').length"), 200);
    // What needs attention is above everything else.
    let first =
        browser.evaluate("[...document.querySelectorAll('#shards tbody tr')].slice(0, 6).map(r => r.className).join()");
    assert_eq!(first, "no_leader,no_leader,no_leader,paused,paused,free");
    // From the keyboard: / searches, and what is found stays while the page renews itself.
    browser.press("/");
    assert_eq!(browser.evaluate("document.activeElement.name"), "q");
    for key in ["o", "u", "t", "b", "o", "x"] {
        browser.press(key);
    }
    // On a busy machine the page searches for the first letters, too.
    serve.wait_for("the search finds", || {
        browser.evaluate("location.search") == "?q=outbox&sort=attention&range=1h"
            && browser.evaluate("document.querySelectorAll('#shards tbody tr').length") == 40
    });
    browser.picture("search");
    assert_eq!(browser.errors(), [""; 0]);
}

#[test]
fn names_from_the_store_are_text_on_every_page() {
    let server = Redis::start();
    let url = server.own_url();
    let planted = Planted::open(&url);
    let evil = "<script>document.title='stolen'</script>\"'><img src=x onerror=alert(1)>";
    let term = planted.lead("shard", evil, evil);
    let mut entry = entry(term.0 - 1, evil, wall_clock_millis() - HOUR, Some((wall_clock_millis(), &Ended::Paused)));
    (entry.ended, entry.reason) = (Some(evil.to_owned()), Some(evil.to_owned()));
    planted.history("shard", &[entry]);
    planted.pause("shard", evil);
    let serve = Serve::start(&url, &[]);
    serve.wait_for("the notes are read", || serve.shard("shard")["paused"] == true);
    let browser = Browser::open("about:blank");
    for path in ["/", "/shards/shard", "/?q=%3Cscript%3E%22%3E%3Cimg%20src%3Dx%3E", "/?state=%22%3E%3Cimg%20src%3Dx%3E"]
    {
        browser.go(&serve.url(path));
        let (scripts, images) =
            (browser.evaluate("document.scripts.length"), browser.evaluate("document.images.length"));
        assert_eq!((scripts, images), (Value::from(1), Value::from(0)), "{path}");
        assert_ne!(browser.evaluate("document.title"), "stolen");
    }
    browser.go(&serve.url("/"));
    assert!(browser.text().contains("onerror=alert(1)"), "{}", browser.text());
    assert_eq!(browser.errors(), [""; 0]);
    // Metrics have names of shards alone, which need no escapes.
    assert!(!serve.get("/metrics").contains("stolen"));
}

#[test]
fn without_javascript_the_page_is_a_plain_table_with_a_form() {
    let server = Redis::start();
    let url = server.own_url();
    Planted::open(&url).lead("shard", "db1", "one");
    let serve = Serve::start(&url, &[]);
    let page = serve.get("/?q=shard&sort=host&range=7d");
    for part in
        ["<form id=\"wish\" method=\"get\"", "<button>Show</button>", ">one</td>", "</i>db1</td>", "value=\"shard\""]
    {
        assert!(page.contains(part), "{part} is missing: {page}");
    }
    assert!(!serve.get("/?q=other").contains("id=\"s-shard\""));
}
