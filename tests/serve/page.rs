//! The page: what others wrote is text in it, and in a browser (Chromium without a window) its script shows what is new.

use crate::server::Serve;
use crate::support::prelude::*;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// What a page must never take for more than text.
const EVIL: &str = "<script>document.title='stolen'</script>\"'><img src=x onerror=alert(1)>";

/// Stands before the server on this port until the test ends, and has `meanwhile` done before the page is asked for a
/// second time. Returns its own port.
fn before(server: u16, meanwhile: impl Fn() + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = AtomicU32::new(0);
    let pass_on = move |mut browser: TcpStream| -> io::Result<()> {
        let mut request = [0; 8192];
        let length = browser.read(&mut request)?;
        if request.starts_with(b"GET / ") && asked.fetch_add(1, Ordering::Relaxed) == 1 {
            meanwhile();
        }
        let mut server = TcpStream::connect(("127.0.0.1", server))?;
        server.write_all(&request[..length])?;
        io::copy(&mut server, &mut browser).map(drop)
    };
    let pass_on = Arc::new(pass_on);
    thread::spawn(move || {
        for browser in listener.incoming().flatten() {
            let pass_on = Arc::clone(&pass_on);
            thread::spawn(move || pass_on(browser));
        }
    });
    port
}

#[test]
fn what_others_wrote_is_text_and_the_script_shows_what_is_new() {
    let place = Place::local();
    let leader = ["-q", "--store", &place.url, "--host", EVIL, "shard", "sleep", "1000"];
    let _leader = Process::start(leaderrun().args(leader));
    let serve = Arc::new(Serve::start(&place, &["--interval", "200ms"]));
    serve.wait_for("it leads", || serve.shard("shard")["host"] == EVIL);
    let search = format!("/?q={}", utf8_percent_encode(EVIL, NON_ALPHANUMERIC));
    for path in ["/", "/shards/shard", &search] {
        let page = serve.get(path);
        assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"), "{path}: {page}");
        assert!(!page.contains("<img") && page.matches("<script").count() == 1, "{path}: {page}");
    }

    // The server ends with the test, and not with the thread that stands before it.
    let known = Arc::downgrade(&serve);
    let store = place.url.clone();
    let port = before(serve.port, move || {
        leaderctl().args(["--store", &store, "pause", "shard", "--keep", "--reason", "by hand"]).said().good();
        let known = known.upgrade().expect("the test goes on");
        known.wait_for("it is paused", || known.shard("shard")["paused"] == true);
    });
    // The clock of its script runs as fast as answers come.
    let mut chromium = Command::new("timeout");
    chromium.args(["80", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    chromium.arg(format!("--user-data-dir={}", place.path("browser").display()));
    chromium.args(["--virtual-time-budget=3000", "--dump-dom", &format!("http://127.0.0.1:{port}/")]);
    let shown = chromium.env("TMPDIR", place.fleet.scratch.path()).said().good();
    assert!(shown.contains("by hand") && shown.contains("onerror=alert(1)"), "{shown}");
    assert!(!shown.contains("<title>stolen"), "{shown}");
}
