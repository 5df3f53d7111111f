//! Servers that are gone, silent, slow, or not the right one.

use super::*;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

#[tokio::test]
async fn a_row_that_is_locked_is_waited_for_and_no_longer_than_we_do() {
    let table = Table::new().await;
    let store = open_for(&table.url(), Duration::from_secs(3));
    let (one, term) = one_leads(&store).await;
    let login = Opts::from_url(&format!("mysql://{ADMIN}@{}/{DATABASE}", table.server.address())).unwrap();
    let mut stranger = Conn::new(login).await.unwrap();
    let lock = format!("START TRANSACTION; SELECT 1 FROM {} WHERE part = 'lease' FOR UPDATE", table.name);
    stranger.query_drop(lock).await.unwrap();
    // On a machine that stalls, our own patience may end before the server's.
    let mut answer = Ok(Renewal::Renewed);
    eventually("the server gives up", async || {
        answer = store.renew(&one, term, 1).await;
        !answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Unknown)
    })
    .await;
    not_applied(answer, "an open transaction holds a lock");
    stranger.disconnect().await.unwrap();
    eventually("it is so", async || store.renew(&one, term, 2).await == Ok(Renewal::Renewed)).await;
}
