//! Logins by caching_sha2_password, which no MariaDB offers: a server that does no more than let clients in, or not,
//! as MySQL's documentation says ("Caching_sha2_password information"), and a real MySQL where there is one.

use super::*;
use leaderrun::internals::store::ErrorKind;
use leaderrun::internals::store::Leases as _;
use sha2::{Digest as _, Sha256};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;

const SCRAMBLE: &[u8] = b"abcdefghijklmnopqrst";
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

/// A server that asks once for a login, and then is gone. Sends what it was shown.
fn server(full: Option<String>) -> (u16, mpsc::Receiver<Vec<u8>>) {
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
        let login = hear(&mut stream);
        let user = login[32..].iter().position(|&byte| byte == 0).unwrap() + 33;
        let length = usize::from(login[user]);
        let _ = shown.send(login[user + 1..user + 1 + length].to_vec());
        match full {
            None => say(&mut stream, 2, &[1, 3]),
            Some(key) => {
                say(&mut stream, 2, &[1, 4]);
                let asked = hear(&mut stream);
                if asked == [2] {
                    say(&mut stream, 4, &[&[1], key.as_bytes()].concat());
                    let _ = shown.send(hear(&mut stream));
                } else {
                    let _ = shown.send(asked);
                }
            }
        }
        say(&mut stream, 6, b"\xff\x15\x04#28000Access denied after all");
    });
    (port, show)
}

fn url(port: u16, options: &str) -> String {
    format!("mysql://app:{PASSWORD}@127.0.0.1:{port}/db?{options}")
}

fn openssl(words: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("openssl")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is missing: install the package openssl");
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap().stdout
}

#[tokio::test]
async fn a_password_that_the_server_remembers_is_proven_without_showing_it() {
    let (port, shown) = server(None);
    let error = open(&url(port, "ssl-mode=DISABLED")).claim(&candidate("one")).await.unwrap_err();
    let proof = shown.recv().unwrap();
    let once = Sha256::digest(PASSWORD);
    let mask = Sha256::digest([&Sha256::digest(once)[..], SCRAMBLE].concat());
    let expected: Vec<u8> = once.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
    assert_eq!(proof, expected);
    // The packets are counted, and the last one is out of order, but a refusal is heard at any time.
    assert_eq!(error.kind, ErrorKind::Denied, "{error}");
    assert!(error.message.contains("Access denied after all") && !error.message.contains(PASSWORD), "{error}");
}

#[tokio::test]
async fn a_password_is_not_shown_in_the_clear_and_not_to_anybody_s_key() {
    let (port, shown) = server(Some("no key".to_owned()));
    let error = open(&url(port, "ssl-mode=DISABLED")).claim(&candidate("one")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured);
    assert!(error.message.contains("ssl-mode=REQUIRED") && !error.message.contains(PASSWORD), "{error}");
    shown.recv().unwrap();
    assert!(shown.recv().is_err(), "it was shown nothing more");
}

#[tokio::test]
async fn a_password_is_sealed_with_a_key_from_the_server_or_from_a_file_where_the_user_says_so() {
    let scratch = tempfile::TempDir::new().unwrap();
    let (private, public) = (scratch.path().join("private"), scratch.path().join("public"));
    openssl(&["genrsa", "-out", private.to_str().unwrap(), "2048"], b"");
    let key = openssl(&["rsa", "-in", private.to_str().unwrap(), "-pubout"], b"");
    std::fs::write(&public, &key).unwrap();
    let file = format!("server-public-key-path={}", public.display());
    for option in ["get-server-public-key=1", &file] {
        let (port, shown) = server(Some(String::from_utf8(key.clone()).unwrap()));
        let url = url(port, &format!("ssl-mode=DISABLED&{option}"));
        open(&url).claim(&candidate("one")).await.unwrap_err();
        shown.recv().unwrap();
        let sealed = shown.recv().unwrap();
        let words = ["pkeyutl", "-decrypt", "-inkey", private.to_str().unwrap(), "-pkeyopt", "rsa_padding_mode:oaep"];
        let opened = openssl(&words, &sealed);
        let plain: Vec<u8> = opened.iter().zip(SCRAMBLE).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(plain, format!("{PASSWORD}\0").into_bytes(), "{option}");
    }
    let (port, _shown) = server(Some("no key".to_owned()));
    let error = open(&url(port, "get-server-public-key=1")).claim(&candidate("one")).await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("public key of"), "{error}");
}

#[tokio::test]
async fn a_real_mysql_lets_its_users_in_by_each_of_its_ways() {
    if is_mariadb() {
        println!("skipped: TEST_MYSQLD names no MySQL, and MariaDB has no caching_sha2_password");
        return;
    }
    let table = Table::new().await;
    let user = table.candidate();
    // As they do after a restart: the server then knows no password, and has to see it.
    let forget = || table.sql("FLUSH PRIVILEGES");
    table.sql(&format!("ALTER USER {user} IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'"));
    let url = |options: &str| table.url_as(&format!("{user}:{PASSWORD}")).replace("ssl-mode=PREFERRED", options);
    let socket = table.server.socket();
    let socket = format!("mysql://{user}:{PASSWORD}@/{DATABASE}?socket={}&table={}", socket.display(), table.name);
    let (data, plain) = (table.server.directory().join("data"), "ssl-mode=DISABLED");
    let from_file = format!("{plain}&server-public-key-path={}", data.join("public_key.pem").display());
    let from_server = format!("{plain}&get-server-public-key=1");
    for way in [url("ssl-mode=REQUIRED"), url("ssl-mode=PREFERRED"), socket, url(&from_file), url(&from_server)] {
        forget();
        for _ in 0..2 {
            open(&way).observe(&shard()).await.unwrap_or_else(|error| panic!("{way}: {error}"));
        }
        // The server knows it now, and needs no more than a proof.
        open(&url(plain)).observe(&shard()).await.unwrap_or_else(|error| panic!("after {way}: {error}"));
    }
    forget();
    let error = open(&url(plain)).observe(&shard()).await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("ssl-mode=REQUIRED"), "{error}");
    for options in ["ssl-mode=REQUIRED", &from_server] {
        let error = open(&url(options).replace(PASSWORD, "hunter3")).observe(&shard()).await.unwrap_err();
        assert!(error.kind == ErrorKind::Denied && !error.message.contains("hunter3"), "{options}: {error}");
    }
}
