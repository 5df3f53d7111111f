//! What objects are called. Each has a document as JSON.
//!
//! ```text
//! leaderrun.json            the marker: since when the bucket remembers
//! shard/NAME                who leads, the last term, the operators' orders
//! led/NAME                  that the shard was led, and its longest lease
//! note/NAME/history, runs, jobs, once=JOB
//! standby/NAME/SESSION      that a standby is there
//! trial/NAME                what store init and store check write
//! ```

use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::lease_store::documents::{Key, List, Part};

const SHARDS: &str = "shard/";
const NOTES: &str = "note/";
const STANDBYS: &str = "standby/";
/// Before the name of a job, which cannot contain it.
const MARK: char = '=';

/// The name of a shard in a key. A '/' would make empty parts of some names, and a '#' ends a URL.
fn name_of(shard: &str) -> String {
    shard.replace('/', "=").replace('#', "!")
}

fn shard_of(name: &str) -> Option<Shard> {
    name.replace('=', "/").replace('!', "#").parse().ok()
}

pub fn key_of(key: Key<'_>) -> String {
    match key {
        Key::Marker => "leaderrun.json".to_owned(),
        Key::Shard(shard) => shards(shard.as_str()),
        Key::Led(shard) => format!("led/{}", name_of(shard.as_str())),
        Key::Note(shard, Page::Standby(session)) => {
            format!("{STANDBYS}{}/{}", name_of(shard.as_str()), session.as_str())
        }
        Key::Note(shard, page) => format!("{NOTES}{}/{}", name_of(shard.as_str()), page.name(MARK)),
        Key::Scratch(name) => format!("trial/{name}"),
    }
}

fn shards(prefix: &str) -> String {
    format!("{SHARDS}{}", name_of(prefix))
}

pub fn beginnings(list: List<'_>) -> Vec<String> {
    match list {
        List::Shards(prefix) => vec![shards(prefix)],
        List::Standbys(prefix) => vec![format!("{STANDBYS}{}", name_of(prefix))],
        List::Notes(shard) => {
            let name = name_of(shard.as_str());
            vec![format!("{NOTES}{name}/"), format!("{STANDBYS}{name}/")]
        }
    }
}

pub fn listed(key: &str) -> Option<(Shard, Part)> {
    if let Some(name) = key.strip_prefix(SHARDS) {
        return Some((shard_of(name)?, Part::Lease));
    }
    if let Some((name, session)) = key.strip_prefix(STANDBYS).and_then(|rest| rest.rsplit_once('/')) {
        return Some((shard_of(name)?, Part::Note(Page::Standby(Session::from_record(session)))));
    }
    let (name, page) = key.strip_prefix(NOTES)?.rsplit_once('/')?;
    Some((shard_of(name)?, Part::Note(Page::of_name(page, MARK)?)))
}
