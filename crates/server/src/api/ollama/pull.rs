//! `/api/pull` and `/api/delete`, where the operator allows them.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};

use super::{Named, error_json, ndjson};
use crate::api::body::JsonBody;
use crate::app::App;
use crate::error::{ApiError, Result};
use crate::models::PullProgress;

/// So often a client is told how far a file is.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn pull(State(app): State<App>, JsonBody(named): JsonBody<Named>) -> Result<Response> {
    let wants_stream = named.stream.unwrap_or(true);
    let model = named.model()?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let (end, ended) = oneshot::channel();
    // It goes on if the client hangs up: what has been fetched is used by the next one that asks.
    tokio::spawn(async move {
        let mut last: Option<(Instant, String)> = None;
        let progress = move |progress: PullProgress| {
            let is_new =
                last.as_ref().is_none_or(|(at, file)| at.elapsed() >= INTERVAL || *file != progress.file);
            if is_new || progress.total == Some(progress.completed) {
                last = Some((Instant::now(), progress.file.clone()));
                // Nobody listens any more.
                let _ = tell.send(progress);
            }
        };
        let _ = end.send(app.pull(model, progress).await);
    });
    let died = || ApiError::internal("the thread that pulls the model has died; see the server's log");
    if !wants_stream {
        ended.await.map_err(|_| died())??;
        return Ok(Json(json!({ "status": "success" })).into_response());
    }
    // What fails before anything was fetched has a status of its own.
    let Some(first) = told.recv().await else {
        ended.await.map_err(|_| died())??;
        let lines = [json!({ "status": "pulling manifest" }), json!({ "status": "success" })];
        return Ok(ndjson::response(stream::iter(lines)));
    };
    let last = async move {
        match ended.await.unwrap_or_else(|_| Err(died())) {
            Ok(()) => json!({ "status": "success" }),
            Err(error) => error_json(&error),
        }
    };
    let begin = stream::iter([json!({ "status": "pulling manifest" }), line(&first)]);
    Ok(ndjson::response(begin.chain(lines(told)).chain(stream::once(last))))
}

fn lines(told: mpsc::UnboundedReceiver<PullProgress>) -> impl Stream<Item = Value> + Send {
    stream::unfold(told, |mut told| async move { Some((line(&told.recv().await?), told)) })
}

fn line(progress: &PullProgress) -> Value {
    // Clients tell files apart by their digests, which are known only once they are here: these are of their names.
    let digest: String = Sha256::digest(&progress.file).iter().map(|byte| format!("{byte:02x}")).collect();
    // What is not fetched says itself what is done with it.
    let status = match progress.file.contains(' ') {
        true => progress.file.clone(),
        false => format!("pulling {}", progress.file),
    };
    let digest = format!("sha256:{digest}");
    let mut line = json!({ "status": status, "digest": digest, "completed": progress.completed });
    if let Some(total) = progress.total {
        line["total"] = total.into();
    }
    line
}

pub(super) async fn delete(State(app): State<App>, JsonBody(named): JsonBody<Named>) -> Result<()> {
    app.delete(&named.model()?).await
}
