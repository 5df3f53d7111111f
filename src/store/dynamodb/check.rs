//! `leaderctl store check`: whether an election can rely on the table.

use super::setup::{TTL, describe, ttl_attribute};
use super::table::Table;
use crate::store::{Finding, StoreError};
use aws_sdk_dynamodb::types::{MultiRegionConsistency, TableDescription};

pub async fn findings(table: &Table) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let mut is_strong = false;
    match describe(table).await {
        // The trial has shown that there is a table.
        Ok(description) => {
            let description = description.as_ref();
            let consistency = description.and_then(TableDescription::multi_region_consistency);
            is_strong = consistency == Some(&MultiRegionConsistency::Strong);
            let replicas = description.map(TableDescription::replicas).unwrap_or_default();
            if !replicas.is_empty() && !is_strong {
                let regions: Vec<_> = replicas.iter().filter_map(|replica| replica.region_name()).collect();
                findings.push(Finding::bad(format!(
                    "the replicas in {} are not strongly consistent, so two regions can both grant a lease: use a table \
                     without replicas, or one with multi-region strong consistency",
                    regions.join(", ")
                )));
            }
        }
        Err(error) => findings.push(unseen("replicas", error)?),
    }
    match ttl_attribute(table).await {
        // Multi-region strongly consistent tables cannot have a TTL.
        Ok(attribute) if attribute.as_deref() == Some(TTL) || is_strong => {}
        Ok(_) => findings.push(Finding::doubtful(
            "no TTL on attribute ttl: records of crashed leaders stay until the next claim; leaderctl store init \
             enables it where no other attribute has it",
        )),
        Err(error) => findings.push(unseen("TTL", error)?),
    }
    Ok(findings)
}

fn unseen(what: &str, error: StoreError) -> Result<Finding, StoreError> {
    if !error.kind.is_final() {
        return Err(error);
    }
    Ok(Finding::doubtful(format!("cannot see the table's {what}: {error}")))
}
