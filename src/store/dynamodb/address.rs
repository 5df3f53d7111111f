//! Reads `dynamodb://TABLE`.

use crate::store::aws::Account;
use crate::store::url::{query_options, read_endpoint};
use url::Url;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub table: String,
    pub account: Account,
}

impl Address {
    pub fn identity(&self) -> String {
        let Self { table, account: Account { region, endpoint, profile: _ } } = self;
        format!("dynamodb {table} {region:?} {:?}", endpoint.as_ref().map(Url::as_str))
    }

    pub fn read(rest: &str) -> Result<Self, String> {
        let Some(rest) = rest.strip_prefix("//") else {
            return Err("dynamodb: needs // after it: write dynamodb://TABLE".to_owned());
        };
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        // AWS, "Naming rules" of the DynamoDB Developer Guide.
        let well_named = table.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
        if !(3..=255).contains(&table.len()) || !well_named {
            return Err("a DynamoDB table has 3 to 255 letters, digits and _ - . in its name: \
                        write dynamodb://TABLE?region=REGION"
                .to_owned());
        }
        let mut options = query_options(query, "dynamodb", &["region", "endpoint", "profile"])?;
        let endpoint = options.remove("endpoint").map(|text| read_endpoint("dynamodb", &text)).transpose()?;
        let account = Account { region: options.remove("region"), profile: options.remove("profile"), endpoint };
        Ok(Self { table: table.to_owned(), account })
    }
}
