//! Logins by caching_sha2_password, which no MariaDB offers: a server that does no more than let clients in, or not,
//! as MySQL's documentation says ("Caching_sha2_password information").

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

const PASSWORD: &str = "hunter2";

fn say(stream: &mut TcpStream, sequence: u8, body: &[u8]) {
    let length = u8::try_from(body.len() % 256).unwrap();
    let rest = u8::try_from(body.len() / 256).unwrap();
    stream.write_all(&[&[length, rest, 0, sequence], body].concat()).unwrap();
}

fn hear(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(head[0]) + usize::from(head[1]) * 256];
    stream.read_exact(&mut body).unwrap();
    body
}

/// A server that asks once for a login, answers with `answer`, and then listens. Sends what it hears after that.
fn server(answer: &'static [u8]) -> (u16, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (shown, show) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Without TLS.
        let greeting =
            b"\x0a8.0.36\0\x08\0\0\0abcdefgh\0\xff\xf7\x2d\x02\0\xff\xdf\x15\0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0\
                         caching_sha2_password\0";
        say(&mut stream, 0, greeting);
        hear(&mut stream);
        say(&mut stream, 2, answer);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let _ = shown.send(rest);
    });
    (port, show)
}

fn url(port: u16, options: &str) -> String {
    format!("mysql://app:{PASSWORD}@127.0.0.1:{port}/db?{options}")
}

/// The first answer asks for the password. The second says that an earlier login showed it: a later one will have to.
/// The others say the same, and more than a server should.
#[tokio::test]
async fn a_password_that_a_server_has_to_see_is_shown_to_none_without_tls() {
    for answer in [&[1, 4][..], &[1, 3], &[1, 4, 0], &[1, 3, 0]] {
        let (port, shown) = server(answer);
        let claim = open(&url(port, "ssl-mode=PREFERRED")).claim(&candidate("one")).await;
        assert_eq!(shown.recv().unwrap(), b"", "{answer:?}");
        misconfigured(claim, "use TLS, with ssl-mode=REQUIRED");
    }
}

#[tokio::test]
async fn a_refusal_and_a_proof_that_nobody_knows_are_told_by_name() {
    let (port, _shown) = server(b"\xff\x15\x04#28000Access denied after all");
    denied(open(&url(port, "")).claim(&candidate("one")).await, "Access denied after all");
    for way in [&b"\xfedialog\0abc"[..], b"\xfemysql_clear_password\0"] {
        let (port, shown) = server(way);
        misconfigured(
            open(&url(port, "")).claim(&candidate("one")).await,
            "a login method that leaderrun does not support",
        );
        let shown = shown.recv().unwrap();
        assert!(!shown.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes()), "{shown:?}");
    }
}
