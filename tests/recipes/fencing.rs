//! The examples of leaderrun(7), section FENCING: the very text of the page is run, and refuses an older term.
#![cfg(any(feature = "postgres", feature = "dynamodb"))]

/// The literal blocks of the section, as a reader copies them.
fn examples() -> Vec<String> {
    let page = crate::text("man/leaderrun.7");
    let (_, section) = page.split_once("\n.Sh FENCING\n").expect("there is such a section");
    let section = section.split("\n.Sh ").next().expect("a split has a first part");
    let blocks = section.split(".Bd -literal").skip(1).map(|block| {
        let (_, block) = block.split_once('\n').expect("a block has lines");
        let (block, _) = block.split_once(".Ed").expect("a block ends");
        // How roff writes a backslash.
        block.replace("\\e", "\\")
    });
    blocks.collect()
}

fn example(part: &str) -> String {
    let mut found = examples().into_iter().filter(|example| example.contains(part));
    let example = found.next().unwrap_or_else(|| panic!("no example has {part:?}"));
    assert!(found.next().is_none(), "two examples have {part:?}");
    example
}

#[cfg(feature = "postgres")]
mod sql {
    use super::example;
    use crate::support::fleet::leaderrun;
    use crate::support::postgres::Server;
    use crate::support::said::Runs as _;
    use crate::support::server::{Server as _, prepare};
    use std::process::Command;

    fn server() -> Server {
        let server = Server::start();
        server.sql(&example("CREATE TABLE"));
        server
    }

    fn script() -> String {
        example("psql")
    }

    /// As an administrator's profile has it; the example names no server.
    fn at<'a>(server: &Server, command: &'a mut Command) -> &'a mut Command {
        let port = server.port().to_string();
        command.env("PGHOST", "127.0.0.1").env("PGPORT", port).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command.env("PSQLRC", "/dev/null").env_remove("PGPASSWORD").env_remove("PGOPTIONS").env_remove("PGSERVICE")
    }

    fn write(server: &Server, term: u64) -> String {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-ec", &script()]).env("LEADERRUN_TERM", term.to_string());
        at(server, shell).said().good().trim().to_owned()
    }

    /// With what changes at every write of a row, whatever is written.
    fn row(server: &Server) -> String {
        server.sql("SELECT total, term, xmin, ctid FROM report WHERE day = CURRENT_DATE")
    }

    #[test]
    fn the_sql_of_the_manual_refuses_an_older_term_and_changes_nothing() {
        let server = server();
        assert_eq!(write(&server, 7), "INSERT 0 1");
        assert!(row(&server).starts_with("42|7|"), "{}", row(&server));
        server.sql("UPDATE report SET total = 1");
        let before = row(&server);
        assert_eq!(write(&server, 6), "INSERT 0 0");
        assert_eq!(row(&server), before);
        // The same leader writes again, and so does the next one.
        assert_eq!(write(&server, 7), "INSERT 0 1");
        assert_eq!(write(&server, u64::MAX / 2), "INSERT 0 1");
        assert!(row(&server).starts_with(&format!("42|{}|", u64::MAX / 2)), "{}", row(&server));
        assert_eq!(write(&server, 7), "INSERT 0 0");
    }

    #[test]
    fn a_command_under_leaderrun_writes_in_its_term_and_an_earlier_one_is_refused_from_then_on() {
        let mut server = server();
        prepare(&server);
        server.grow_old();
        let store = server.own_url();
        let mut terms = Vec::new();
        for _ in 0..2 {
            let mut command = leaderrun();
            let said = at(&server, command.args(["--store", &store, "-c", &script(), "report"])).said();
            assert_eq!(said.good().trim(), "INSERT 0 1");
            let written: u64 = server.sql("SELECT term FROM report").parse().expect("a number");
            let led: u64 = server
                .sql("SELECT text::json ->> 'term' FROM leaderrun WHERE shard = 'report' AND part = 'lease'")
                .parse()
                .expect("a number");
            assert_eq!(written, led);
            terms.push(written);
        }
        assert!(terms[0] < terms[1], "{terms:?}");
        let before = row(&server);
        assert_eq!(write(&server, terms[0]), "INSERT 0 0");
        assert_eq!(row(&server), before);
    }
}

#[cfg(feature = "dynamodb")]
mod dynamodb {
    use super::example;
    use crate::support::dynamo::{Server, make_table};
    use crate::support::said::Runs as _;
    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::error::SdkError;
    use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
    use aws_sdk_dynamodb::types::{AttributeValue, KeyType};
    use std::collections::HashMap;
    use std::process::Command;

    type Item = HashMap<String, AttributeValue>;

    /// The words that aws(1) gets, as a shell makes them.
    fn words(term: u64) -> Vec<String> {
        let script = format!("aws() {{ printf '%s\\0' \"$@\"; }}\n{}", example("aws dynamodb"));
        let text = Command::new("sh").args(["-ec", &script]).env("LEADERRUN_TERM", term.to_string()).said().good();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    fn attributes(json: &str) -> Item {
        let read: HashMap<String, HashMap<String, String>> = serde_json::from_str(json).expect("what aws(1) takes");
        let attribute = |(name, typed): (String, HashMap<String, String>)| {
            let (kind, value) = typed.into_iter().next().expect("a type and a value");
            let value = match kind.as_str() {
                "S" => AttributeValue::S(value),
                "N" => AttributeValue::N(value),
                _ => panic!("what is a {kind}?"),
            };
            (name, value)
        };
        read.into_iter().map(attribute).collect()
    }

    async fn write(client: &Client, term: u64) -> Result<(), UpdateItemError> {
        let words = words(term);
        assert_eq!(words[..2], ["dynamodb", "update-item"]);
        let mut request = client.update_item();
        for option in words[2..].chunks(2) {
            let [name, value] = option else { panic!("{option:?} has no value") };
            request = match name.as_str() {
                "--table-name" => request.table_name(value),
                "--key" => request.set_key(Some(attributes(value))),
                "--update-expression" => request.update_expression(value),
                "--condition-expression" => request.condition_expression(value),
                "--expression-attribute-names" => {
                    request.set_expression_attribute_names(Some(serde_json::from_str(value).expect("names")))
                }
                "--expression-attribute-values" => request.set_expression_attribute_values(Some(attributes(value))),
                _ => panic!("what is {name}?"),
            };
        }
        request.send().await.map(drop).map_err(SdkError::into_service_error)
    }

    async fn items(client: &Client) -> Vec<Item> {
        client.scan().table_name("report").send().await.expect("the server answers").items().to_vec()
    }

    #[tokio::test]
    async fn the_update_of_the_manual_refuses_an_older_term_and_changes_nothing() {
        let server = Server::start();
        let client = server.client();
        make_table(&client, "report", &[("day", KeyType::Hash)]).await;
        write(&client, 7).await.expect("the first write");
        let written = items(&client).await;
        assert_eq!(written.len(), 1);
        let number = |number: &str| AttributeValue::N(number.to_owned());
        assert_eq!((&written[0]["total"], &written[0]["term"]), (&number("42"), &number("7")));
        // So that it would be seen if the older one wrote.
        let by_hand = written[0].clone().into_iter().chain([("total".to_owned(), number("1"))]).collect();
        client.put_item().table_name("report").set_item(Some(by_hand)).send().await.expect("the server answers");
        let before = items(&client).await;

        let refusal = write(&client, 6).await.expect_err("a later leader was here");
        assert!(refusal.is_conditional_check_failed_exception(), "{refusal:?}");
        assert_eq!(items(&client).await, before);

        write(&client, 7).await.expect("the same leader again");
        write(&client, 1_795_268_611_017).await.expect("the next leader");
        assert_eq!(items(&client).await[0]["term"], number("1795268611017"));
        assert!(write(&client, 7).await.expect_err("too late").is_conditional_check_failed_exception());
    }
}
