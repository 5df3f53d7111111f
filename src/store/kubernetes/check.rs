//! `leaderctl store check`: the API server, each right, and its clock.

use super::Objects;
use crate::store::lease_store::documents::Documents;
use crate::store::{ErrorKind, Finding, StoreError};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::api::{Api, PostParams};
use serde_json::json;

const VERBS: [&str; 6] = ["get", "list", "watch", "create", "update", "delete"];

pub async fn identify(objects: &Objects) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    match objects.ask("get", |to| async move { to.leases.clone().into_client().apiserver_version().await }).await {
        Ok(version) => findings.push(Finding::good(format!("{} runs {}", objects.place(), version.git_version))),
        Err(refusal) if refusal.error.kind == ErrorKind::Denied => {}
        Err(refusal) => return Err(refusal.error),
    }
    for verb in VERBS {
        let answer = objects.ask("create", |to| async move {
            let (namespace, group, resource) = (&to.namespace, "coordination.k8s.io", "leases");
            let may = json!({ "namespace": namespace, "verb": verb, "group": group, "resource": resource });
            let review = json!({ "metadata": {}, "spec": { "resourceAttributes": may } });
            let review: SelfSubjectAccessReview = serde_json::from_value(review).expect("it is a review");
            let answer = Api::all(to.leases.clone().into_client()).create(&PostParams::default(), &review).await?;
            Ok((answer.status.is_some_and(|status| status.allowed), to.namespace.clone()))
        });
        let (is_allowed, namespace) = match answer.await {
            // Reviews may be forbidden. The trial of documents finds out.
            Err(refusal) if refusal.error.kind == ErrorKind::Denied => return Ok(findings),
            answer => answer?,
        };
        if is_allowed {
            continue;
        }
        let missing = format!(
            "permission missing: {verb} of leases (coordination.k8s.io) in namespace {namespace}: grant it by a Role"
        );
        findings.push(match verb {
            "list" | "watch" => {
                Finding::doubtful(format!("{missing}; without it a standby does not hear of a release"))
            }
            "delete" => Finding::doubtful(missing),
            _ => Finding::bad(missing),
        });
    }
    Ok(findings)
}
