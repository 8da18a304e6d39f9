//! Both transports, with servers that are written here.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod http;
#[cfg(unix)]
mod process;

use super::ServerClient;
use greenroom_scenario::ToolSpec;
use greenroom_scenario::tools::ToolServer;
use std::path::Path;

fn opened<T>(
    server: &ToolServer,
    then: impl AsyncFnOnce(ServerClient, Vec<ToolSpec>) -> T,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, specs) = ServerClient::open("files", server, Path::new("")).await?;
        Ok(then(client, specs).await)
    })
}

fn refused(server: &ToolServer) -> String {
    format!("{:#}", opened(server, async |_, _| ()).expect_err("it can't be used"))
}
