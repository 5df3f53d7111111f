//! The place where candidates meet: a store, and a directory for their files.

use super::prelude::*;
use super::server::Server;

pub struct Place {
    pub fleet: Fleet,
    pub url: String,
    /// What the programs need to be let in.
    pub environment: &'static [(&'static str, &'static str)],
    /// None where the store is a directory.
    pub server: Option<Box<dyn Server>>,
}

impl Place {
    pub fn local() -> Self {
        let fleet = Fleet::new();
        let url = format!("file:{}", fleet.scratch.path().join("store").display());
        Self { fleet, url, environment: &[], server: None }
    }

    /// On a server that has what the store needs.
    pub fn remote(mut server: Box<dyn Server>) -> Self {
        prepare(&*server);
        server.grow_old();
        let (url, environment) = (server.own_url(), server.environment());
        Self { fleet: Fleet::new(), url, environment, server: Some(server) }
    }

    pub fn server(&self) -> &dyn Server {
        &**self.server.as_ref().expect("only a server can be away")
    }

    /// A name that nobody else on this host uses: candidates are asked whatever their store is.
    pub fn shard(&self) -> String {
        let scratch = self.fleet.scratch.path().file_name().expect("it has a name").to_string_lossy();
        format!("shard-{}", scratch.trim_start_matches('.'))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.fleet.scratch.path().join(name)
    }

    /// The same as [`wait_until_or`], with what the candidates said.
    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        wait_until_or(what, || self.fleet.logs(), condition);
    }

    /// Starts a candidate, which announces itself.
    pub fn launch(&mut self, owner: &str, flags: &[&str]) {
        self.launch_with(owner, &[&["-v"], flags].concat(), &[ANNOUNCED]);
    }

    /// `flags` go before [`TIMING`].
    pub fn launch_with(&mut self, owner: &str, flags: &[&str], environment: &[(&str, &str)]) {
        let flags = [&["--store", &self.url], &usual_but(&TIMING, flags)[..]].concat();
        self.fleet.start(owner, &flags, &[], &[self.environment, environment].concat());
    }

    pub fn ctl(&self, words: &[&str]) -> Command {
        let mut command = leaderctl();
        command.args(["--store", &self.url]).args(words).envs(self.environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> Said {
        self.ctl(words).said()
    }

    #[track_caller]
    pub fn order(&self, words: &[&str]) -> String {
        let said = self.ask(words);
        assert_eq!(said.code, 0, "{words:?}: {said:?}\n{}", self.fleet.logs());
        said.out
    }

    /// The same, as JSON, an object a line.
    #[track_caller]
    pub fn objects(&self, words: &[&str]) -> Vec<Value> {
        objects(&self.order(words))
    }

    #[track_caller]
    pub fn object(&self, words: &[&str]) -> Value {
        let [object] = <[Value; 1]>::try_from(self.objects(words)).expect("one object");
        object
    }
}

/// `flags`, and of the `usual` ones, each with a value, those that they do not set.
pub fn usual_but<'a>(usual: &[&'a str], flags: &[&'a str]) -> Vec<&'a str> {
    let others = usual.chunks(2).filter(|pair| !flags.contains(&pair[0])).flatten();
    others.chain(flags).copied().collect()
}

/// Makes a test of each story, which gets a place of its own; `&story` only looks at it.
macro_rules! stories_at {
    ($store:ident, $place:expr, [$($story:ident),* $(,)?]) => {
        mod $store {
            $(
                #[test]
                fn $story() {
                    super::$story($place);
                }
            )*
        }
    };
    ($store:ident, $place:expr, [$(async $story:ident),* $(,)?]) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $story() {
                    super::$story($place).await;
                }
            )*
        }
    };
    ($store:ident, $place:expr, [$(&$story:ident),* $(,)?]) => {
        mod $store {
            $(
                #[test]
                fn $story() {
                    super::$story(&$place);
                }
            )*
        }
    };
}

macro_rules! remote_stories {
    ($store:ident, $start:expr, $stories:tt) => {
        stories_at!($store, crate::support::place::Place::remote(Box::new($start)), $stories);
    };
}

/// The same on `file:` and on Redis: what they show is not the store's doing.
macro_rules! on_two_stores {
    ([$($remote:tt)*]: $($story:tt)*) => {
        stories_at!(file, crate::support::place::Place::local(), [$($story)*]);
        #[cfg(feature = "redis")]
        remote_stories!(redis, crate::support::redis::Server::start(), [$($remote)* $($story)*]);
    };
    ($($story:tt)*) => {
        on_two_stores!([]: $($story)*);
    };
}
