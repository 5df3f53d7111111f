//! A network that misbehaves on demand: a TCP proxy between one candidate and the store.
//!
//! Neither side notices a partition: connections are accepted and stay open, and what was sent during the partition
//! arrives after it, such as a late renewal of a lease that another candidate holds by then.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    Fair,
    /// Answers come this much later. Each direction takes half of it.
    Slow(Duration),
    /// Nothing passes in either direction, and neither side notices.
    Partition,
    /// Each connection is reset as soon as something is said on it.
    Reset,
}

/// Ends with all its connections when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    fault: watch::Sender<NetworkFault>,
    accepting: AbortHandle,
}

impl Proxy {
    pub async fn to(host: &str, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (fault, seen) = watch::channel(NetworkFault::Fair);
        let accepting = tokio::spawn(accept(listener, (host.to_owned(), port), seen)).abort_handle();
        Ok(Self { address, fault, accepting })
    }

    pub fn set(&self, fault: NetworkFault) {
        self.fault.send_replace(fault);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: (String, u16), fault: watch::Receiver<NetworkFault>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                connections.spawn(serve(client, target.clone(), fault.clone()));
            }
            // For example, out of descriptors.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(
    mut client: TcpStream,
    target: (String, u16),
    mut fault: watch::Receiver<NetworkFault>,
) -> io::Result<()> {
    over(&mut fault).await?;
    let mut server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    let pumped =
        tokio::try_join!(pump(from_client, to_server, fault.clone()), pump(from_server, to_client, fault.clone()));
    if *fault.borrow() == NetworkFault::Reset {
        // socket(7), SO_LINGER: closing sends RST instead of FIN.
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    pumped.map(drop)
}

/// Returns once there is no partition; with an error when the proxy is gone.
async fn over(fault: &mut watch::Receiver<NetworkFault>) -> io::Result<()> {
    let fair = fault.wait_for(|&fault| fault != NetworkFault::Partition).await;
    fair.map(drop).map_err(io::Error::other)
}

async fn pump(from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut fault: watch::Receiver<NetworkFault>) -> io::Result<()> {
    let (arrived, mut arrivals) = mpsc::channel::<(Instant, Vec<u8>)>(64);
    let writing = async {
        while let Some((at, chunk)) = arrivals.recv().await {
            let seen = *fault.borrow();
            if let NetworkFault::Slow(latency) = seen {
                sleep_until(at + latency / 2).await;
            }
            over(&mut fault).await?;
            if *fault.borrow() == NetworkFault::Reset {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            to.write_all(&chunk).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read(from, arrived), writing)?;
    Ok(())
}

/// Reads on while a chunk is held, so that the chunks of a message are not held one after another.
async fn read(mut from: ReadHalf<'_>, arrived: mpsc::Sender<(Instant, Vec<u8>)>) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 || arrived.send((Instant::now(), buffer[..length].to_vec())).await.is_err() {
            return Ok(());
        }
    }
}
