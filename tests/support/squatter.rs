//! Binds names in the abstract namespace of sockets, as any process of the machine may. Prints `ready` when it has
//! them.
//!
//! `squatter WORD NAME...`: WORD is its answer to each connection. `silence` sends nothing, `endless` sends a stream
//! without an end, and any other word is sent as it is. Without a NAME it only keeps its namespaces.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// No test needs more.
const MOST: usize = 1 << 22;

fn main() {
    let mut words = std::env::args().skip(1);
    let word = words.next().expect("what to answer");
    let listeners: Vec<UnixListener> = words
        .map(|name| {
            let address = SocketAddr::from_abstract_name(name).expect("it fits");
            UnixListener::bind_addr(&address).expect("nobody sits there")
        })
        .collect();
    println!("ready");
    std::thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| {
                let mut silent = Vec::new();
                for stream in listener.incoming().map_while(Result::ok) {
                    silent.extend(answer(stream, &word));
                }
            });
        }
        loop {
            std::thread::park();
        }
    });
}

/// The connection, where it stays open.
fn answer(mut stream: UnixStream, word: &str) -> Option<UnixStream> {
    match word {
        "silence" => return Some(stream),
        "endless" => {
            let mut written = 0;
            while written < MOST && stream.write_all(&[b' '; 4096]).is_ok() {
                written += 4096;
            }
        }
        answer => drop(stream.write_all(answer.as_bytes())),
    }
    None
}
