//! `leaderctl store check`: the API server, each right, and its clock.
//!
//! The hazard: a missing right shows only when it is needed. The server itself tells which rights there are.

use super::Objects;
use super::document::name_of;
use super::failure::Verb;
use crate::lease::show;
use crate::store::expiry::ServerTime;
use crate::store::lease_store::documents::{Documents, Key};
use crate::store::{ErrorKind, Finding, StoreError, round_trip};
use crate::time::BootInstant;
use serde_json::json;
use std::time::Duration;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// What kind of server it is, and what may be done there.
pub async fn identify(objects: &Objects) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let namespace = objects.api.connection().await?.namespace.clone();
    match objects.api.question("/version", None).await {
        Ok(version) => findings.push(Finding::good(format!(
            "{} runs {}",
            objects.place(),
            version["gitVersion"].as_str().unwrap_or("an unknown version")
        ))),
        Err(error) if error.kind == ErrorKind::Denied => {}
        Err(error) => return Err(error),
    }
    for verb in Verb::ALL {
        let attributes = json!({
            "namespace": namespace,
            "verb": verb.name(),
            "group": "coordination.k8s.io",
            "resource": "leases",
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": attributes },
        });
        let answer = match objects.api.question(REVIEWS, Some(review)).await {
            Ok(answer) => answer,
            // The trial of documents finds out.
            Err(error) if error.kind == ErrorKind::Denied => return Ok(findings),
            Err(error) => return Err(error),
        };
        if answer["status"]["allowed"] == true {
            continue;
        }
        let missing = format!(
            "permission missing: {} of leases (coordination.k8s.io) in namespace {namespace}: grant it by a Role",
            verb.name()
        );
        findings.push(match verb {
            Verb::Get | Verb::Create | Verb::Update => Finding::bad(missing),
            Verb::List | Verb::Watch => {
                Finding::doubtful(format!("{missing}; without it a standby does not hear of a release"))
            }
            Verb::Delete => Finding::doubtful(missing),
        });
    }
    Ok(findings)
}

pub async fn findings(objects: &Objects) -> Result<Vec<Finding>, StoreError> {
    let marker = name_of(Key::Marker, None);
    let (_, time) = round_trip::measure(|| objects.api.get(&marker)).await?;
    let Some(bounds) = objects.clock().bounds(BootInstant::now()) else {
        return Ok(vec![Finding::doubtful(format!(
            "a round trip takes {time:.1?}; answers have no Date, so a crashed leader's lease ends when its Lease stood \
             unchanged for all of it"
        ))]);
    };
    let width = show(Duration::from_millis(bounds.upper.saturating_sub(bounds.lower)));
    Ok(vec![Finding::good(format!("a round trip takes {time:.1?}; the server's clock is known to within {width}"))])
}
