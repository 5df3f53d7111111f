//! The same of every store: what matters in metrics, in the API and on the page, without a browser.

use crate::server::Serve;
use crate::support::prelude::*;

fn leaders_pauses_a_crash_and_an_outage_show(mut place: Place) {
    let options = ["--interval", "200ms", "--standbys", "--orders", "--request-timeout", "2s"];
    let serve = Serve::start(&place, &options);
    let metric = |name: &str, shard: &str| serve.metric(&format!("leaderrun_{name}{{shard=\"{shard}\"}}"));

    // Nobody ever led it: the order is the only trace of it.
    place.order(&["pause", "never/led", "--reason", "a <b> reason"]);
    serve.wait_for("the pause shows", || metric("shard_paused_seconds", "never/led") > Some(0.0));
    let shown = serve.shard("never/led");
    assert_eq!((&shown["condition"], &shown["held"]), (&Value::from("paused"), &Value::from(false)), "{shown}");
    assert!(serve.get("/").contains("a &lt;b&gt; reason"));
    place.order(&["resume", "--prefix", "never/"]);
    serve.wait_for("it is forgotten", || serve.shard("never/led").is_null());

    let start = |place: &mut Place, owner: &str| {
        // It outlasts a stall of the machine.
        let flags = [&["--store", &place.url][..], &usual_but(&TIMING, &["--lease", "30s"])].concat();
        place.fleet.start(owner, &flags, &[], &[place.environment, &[ANNOUNCED]].concat());
    };
    start(&mut place, "one");
    serve.wait_for("somebody leads", || metric("shard_led", "shard") == Some(1.0));
    start(&mut place, "two");
    serve.wait_for("a standby waits", || metric("shard_standbys", "shard") == Some(1.0));
    let shown = serve.shard("shard");
    assert_eq!((&shown["owner"], &shown["condition"]), (&Value::from("one"), &Value::from("led")), "{shown}");
    serve.wait_for("the history is written", || {
        serve.json("/api/shards/shard/history")["history"].as_array().is_some_and(|all| all.len() == 1)
    });
    assert!(serve.get("/?q=shard").contains(">one</td>"));
    place.fleet.kill("one");
    serve.wait_for("the other one leads", || serve.shard("shard")["owner"] == "two");
    serve.wait_for("the crash is counted", || {
        // Where leases expire, what releases the lease after its death records that.
        let ends = ["lost", "killed"].map(|reason| {
            let series = format!("leaderrun_shard_leadership_ends_total{{shard=\"shard\",reason=\"{reason}\"}}");
            serve.metric(&series).unwrap_or_default()
        });
        ends.iter().sum::<f64>() > 0.5
    });
    assert!(serve.get("/shards/shard").contains(">two</td>") || serve.get("/").contains(">two</td>"));

    if let Some(server) = &mut place.server {
        server.kill();
        serve.wait_for("the store is away", || serve.metric("leaderrun_store_up") == Some(0.0));
        assert!(serve.json("/api/shards")["trouble"].is_object());
        assert!(serve.get("/").contains("The store has not answered for"));
        assert_eq!(metric("shard_led", "shard"), Some(1.0), "it is what was last known");
        assert_eq!(serve.try_get("/readyz").unwrap().status, 503);
        server.start_again();
        serve.wait_for("the store is back", || serve.metric("leaderrun_store_up") == Some(1.0));
        assert!(!serve.get("/").contains("The store has not answered for"));
    }
    serve.wait_for("somebody leads", || serve.shard("shard")["owner"] == "two");
    place.order(&["pause", "shard"]);
    let paused = "leaderrun_shard_leadership_ends_total{shard=\"shard\",reason=\"paused\"}";
    serve.wait_for("the pause is counted", || serve.metric(paused) == Some(1.0));
    assert_eq!(serve.shard("shard")["condition"], "paused");
    assert!(metric("shard_leaderless_seconds", "shard").is_some());
    // It has the name of our directory among its words, as what is left of a tree has.
    drop(serve);
    place.fleet.conclude();
}

on_two_stores!(leaders_pauses_a_crash_and_an_outage_show);
