//! examples/kubernetes as it is printed: the server takes it, and its parts fit each other.

use super::*;
use yaml_rust2::{Yaml, YamlLoader};

const LEADER: &str = include_str!("../../../examples/kubernetes/leader.yaml");

fn document(kind: &str) -> Yaml {
    let documents = YamlLoader::load_from_str(LEADER).expect("it is YAML");
    documents.into_iter().find(|document| document["kind"].as_str() == Some(kind)).expect("there is one")
}

fn words(container: &Yaml) -> Vec<String> {
    let lists = [&container["command"], &container["args"]].map(|list| list.as_vec().expect("a list").clone());
    lists.concat().iter().map(|word| word.as_str().expect("text").to_owned()).collect()
}

#[test]
fn a_server_takes_it() {
    server().apply(LEADER);
}

#[test]
fn the_kubelet_waits_for_longer_than_the_stop_takes() {
    let deployment = document("Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let words = words(&pod["containers"][0]);
    let seconds = |option: &str| {
        let value = words.iter().find_map(|word| word.strip_prefix(option)).expect("it is set");
        humantime::parse_duration(value).expect("a duration").as_secs()
    };
    let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("it is set").cast_unsigned();
    assert!(grace > seconds("--stop-timeout=") + 2 * seconds("--hook-timeout="));
    assert_eq!(pod["serviceAccountName"].as_str(), Some("leaderrun"));
    assert!(
        pod["containers"][0]["lifecycle"].is_badvalue(),
        "a preStop delays the stop and knows nothing of the lease"
    );
}
