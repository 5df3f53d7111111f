//! The address of a table.

/// Which table, and how to reach it. Fields that are None are found as the AWS SDK finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub table: String,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    pub profile: Option<String>,
}
