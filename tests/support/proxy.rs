//! The proxy of `leaderctl selftest`, for tests that have no runtime: one between each candidate and its store.

use leaderrun::internals::cli::leaderctl::selftest::proxy;
pub use proxy::NetworkFault;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use tokio::runtime::{Builder, Handle};

/// All proxies of a test program run here.
pub static RUNTIME: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = runtime.handle().clone();
    thread::spawn(move || runtime.block_on(pending::<()>()));
    handle
});

/// Ends, with all its connections, when its last clone is dropped.
#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    proxy: Arc<proxy::Proxy>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Self {
        let (sender, started) = mpsc::channel();
        RUNTIME.spawn(async move {
            let proxy = proxy::Proxy::to(&target.ip().to_string(), target.port()).await;
            sender.send(proxy).expect("it is waited for");
        });
        let proxy = started.recv().expect("the runtime runs").expect("loopback has a free port");
        Self { address: proxy.address, proxy: Arc::new(proxy) }
    }

    pub fn set(&self, fault: NetworkFault) {
        self.proxy.set(fault);
    }
}
