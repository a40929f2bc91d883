//! `/api/pull` and `/api/delete`, where the operator allows them.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};

use super::common::{Named, error_json};
use super::ndjson;
use crate::api::body::JsonBody;
use crate::error::HttpResult;
use runner::PullProgress;
use runner::RequestError;
use runner::Runner;

/// Interval of progress messages.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn pull(
    State(runner): State<Runner>,
    JsonBody(named): JsonBody<Named>,
) -> HttpResult<Response> {
    let wants_stream = named.stream.unwrap_or(true);
    let model = named.model()?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let (end, ended) = oneshot::channel();
    // The download continues if the client disconnects; a later pull resumes from it.
    tokio::spawn(async move {
        let mut last: Option<(Instant, String)> = None;
        let progress = move |progress: PullProgress| {
            let is_new =
                last.as_ref().is_none_or(|(at, file)| at.elapsed() >= INTERVAL || *file != progress.file);
            if is_new || progress.total == Some(progress.completed) {
                last = Some((Instant::now(), progress.file.clone()));
                // The client has disconnected.
                let _ = tell.send(progress);
            }
        };
        let _ = end.send(runner.pull(model, progress).await);
    });
    let died = || RequestError::internal("the thread that pulls the model has died; see the server's log");
    if !wants_stream {
        ended.await.map_err(|_| died())??;
        return Ok(Json(json!({ "status": "success" })).into_response());
    }
    // An error before the first download has an HTTP status.
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
    // Clients distinguish files by digest. The content's digest is known only after the download,
    // so this one is of the file's name.
    let digest: String = Sha256::digest(&progress.file).iter().map(|byte| format!("{byte:02x}")).collect();
    // A step that is no download carries its own status text.
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

pub(super) async fn delete(State(runner): State<Runner>, JsonBody(named): JsonBody<Named>) -> HttpResult<()> {
    Ok(runner.delete(&named.model()?).await?)
}
