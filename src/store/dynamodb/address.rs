//! What names a table.

/// Which table, and how to reach it. What is None is found as the AWS SDK finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub table: String,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    pub profile: Option<String>,
}
