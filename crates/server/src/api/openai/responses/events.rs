//! Deltas of an answer as events of a response. Items open and close in order, and the response is
//! built from them.

use engine::Progress;
use serde_json::{Map, Value, json};

use super::super::common::{TokenLogprob, new_id};
use super::super::tools::{self, Freeform, Tool, Tools};
use crate::api::timing::progress_json;
use runner::{Delta, Finish, StopReason, TokenInfo, Usage};

/// Makes the events of one response. An event is its data, with its name as `type`.
pub(super) struct ResponseEvents {
    /// Fields of the response other than its status and output.
    base: Map<String, Value>,
    with_logprobs: bool,
    /// True if reasoning is sent as its own summary.
    as_summary: bool,
    /// The tools as the client knows them.
    tools: Tools,
    /// Sequence number of the next event.
    sequence: usize,
    /// Completed items.
    output: Vec<Value>,
    open: Option<OpenItem>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputKind {
    Reasoning,
    /// Reasoning sent as its own summary.
    Summary,
    Message,
    Call,
    /// A call of a custom tool.
    Custom,
    /// A call of the client's tool search.
    Search,
}

impl OutputKind {
    /// Name `NAME` of the item's text events, `response.NAME.delta` and `.done`.
    fn text_event(self) -> &'static str {
        match self {
            OutputKind::Reasoning => "reasoning_text",
            OutputKind::Summary => "reasoning_summary_text",
            OutputKind::Message => "output_text",
            OutputKind::Call => "function_call_arguments",
            OutputKind::Custom => "custom_tool_call_input",
            // The item is sent whole.
            OutputKind::Search => "",
        }
    }

    /// The item's key for its parts, the key of a part's index, and the name of part events.
    fn part_names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            OutputKind::Summary => ("summary", "summary_index", "reasoning_summary_part"),
            OutputKind::Reasoning
            | OutputKind::Message
            | OutputKind::Call
            | OutputKind::Custom
            | OutputKind::Search => ("content", "content_index", "content_part"),
        }
    }
}

/// The item being written.
struct OpenItem {
    kind: OutputKind,
    item: Value,
    /// Text of the item, or the arguments or input of a call.
    text: String,
    /// Input of a custom tool's call.
    freeform: Freeform,
    logprobs: Vec<Value>,
}

impl ResponseEvents {
    pub(super) fn new(
        base: Map<String, Value>,
        with_logprobs: bool,
        as_summary: bool,
        tools: Tools,
    ) -> ResponseEvents {
        ResponseEvents { base, with_logprobs, as_summary, tools, sequence: 0, output: Vec::new(), open: None }
    }

    /// Returns the first events.
    pub(super) fn start(&mut self) -> Vec<Value> {
        let response = self.response("in_progress", Value::Null, Value::Null, None);
        ["response.created", "response.in_progress"]
            .map(|name| self.event(name, json!({ "response": response })))
            .into()
    }

    /// Returns the progress of prefill in llama-server's form: one more event with the name of the
    /// first.
    pub(super) fn progress(&mut self, progress: &Progress, timings: Option<Value>) -> Value {
        let response = self.response("in_progress", Value::Null, Value::Null, None);
        let data = json!({ "response": response, "prompt_progress": progress_json(progress) });
        with_timings(self.event("response.in_progress", data), timings.as_ref())
    }

    /// Returns the events of one delta.
    pub(super) fn push(&mut self, delta: Delta) -> Vec<Value> {
        let mut out = Vec::new();
        match delta {
            Delta::Reasoning(text) if !text.is_empty() => {
                let item = json!({ "id": "", "type": "reasoning", "summary": [], "content": [], "status": "in_progress" });
                let kind = if self.as_summary { OutputKind::Summary } else { OutputKind::Reasoning };
                self.enter(kind, item, &mut out);
                self.write(text, None, &mut out);
            }
            Delta::Content { text, tokens } if !text.is_empty() || !tokens.is_empty() => {
                self.enter(OutputKind::Message, message(), &mut out);
                self.write(text, Some(tokens), &mut out);
            }
            Delta::CallBegin { id, name, .. } => {
                // Each call is an item of its own.
                self.close("completed", &mut out);
                let (kind, item) = call(&id, self.tools.called(&name));
                self.enter(kind, item, &mut out);
            }
            Delta::CallArguments { text, .. } => {
                self.write(text, None, &mut out);
            }
            Delta::CallEnd { .. } => self.close("completed", &mut out),
            Delta::Reasoning(_) | Delta::Content { .. } | Delta::Prompt(_) | Delta::Progress(_) => {}
        }
        out
    }

    /// Returns the last events, and the whole response.
    pub(super) fn finish(&mut self, finish: &Finish) -> (Vec<Value>, Value) {
        let mut out = Vec::new();
        let (status, details, error) = match &finish.reason {
            StopReason::End
            | StopReason::StopString(_)
            | StopReason::StopToken(_)
            | StopReason::ToolCalls => ("completed", Value::Null, Value::Null),
            StopReason::MaxTokens | StopReason::ContextFull => {
                ("incomplete", json!({ "reason": "max_output_tokens" }), Value::Null)
            }
            StopReason::Cancelled => ("cancelled", Value::Null, Value::Null),
            StopReason::Timeout => (
                "failed",
                Value::Null,
                json!({ "code": "server_error", "message": "the request's time is over" }),
            ),
            StopReason::Ungrammatical(words) => {
                ("failed", Value::Null, json!({ "code": "invalid_prompt", "message": words }))
            }
            StopReason::Failed(message) => {
                ("failed", Value::Null, json!({ "code": "server_error", "message": message }))
            }
        };
        // An empty answer is an empty message.
        if self.output.is_empty() && self.open.is_none() && status != "failed" {
            self.enter(OutputKind::Message, message(), &mut out);
        }
        self.close(if status == "completed" { "completed" } else { "incomplete" }, &mut out);
        let response = self.response(status, details, error, Some(finish.usage));
        let name = match status {
            "cancelled" => "response.failed".to_owned(),
            status => format!("response.{status}"),
        };
        out.push(self.event(&name, json!({ "response": response })));
        (out, response)
    }

    fn event(&mut self, name: &str, mut data: Value) -> Value {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        data
    }

    fn response(&self, status: &str, details: Value, error: Value, usage: Option<Usage>) -> Value {
        let mut response = self.base.clone();
        response.insert("status".into(), json!(status));
        response.insert("error".into(), error);
        response.insert("incomplete_details".into(), details);
        response.insert("output".into(), json!(self.output));
        response.insert("usage".into(), usage.map_or(Value::Null, usage_json));
        Value::Object(response)
    }

    fn enter(&mut self, kind: OutputKind, mut item: Value, out: &mut Vec<Value>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close("completed", out);
        let id = new_id(match kind {
            OutputKind::Reasoning | OutputKind::Summary => "rs",
            OutputKind::Message => "msg",
            OutputKind::Call => "fc",
            OutputKind::Custom => "ctc",
            OutputKind::Search => "tsc",
        });
        item["id"] = json!(id);
        let index = self.output.len();
        out.push(self.event("response.output_item.added", json!({ "output_index": index, "item": item })));
        if let Some(part) = part(kind, "", &[]) {
            let (_, place, name) = kind.part_names();
            let data = json!({ "item_id": id, "output_index": index, place: 0, "part": part });
            out.push(self.event(&format!("response.{name}.added"), data));
        }
        let (text, freeform) = (String::new(), Freeform::default());
        self.open = Some(OpenItem { kind, item, text, freeform, logprobs: Vec::new() });
    }

    fn write(&mut self, mut text: String, tokens: Option<Vec<TokenInfo>>, out: &mut Vec<Value>) {
        let Some(open) = &mut self.open else { return };
        if open.kind == OutputKind::Custom {
            text = open.freeform.push(&text);
        }
        self.write_read(text, tokens, out);
    }

    /// Writes text that a custom tool's input was decoded to, as the client sees it.
    fn write_read(&mut self, text: String, tokens: Option<Vec<TokenInfo>>, out: &mut Vec<Value>) {
        let Some(open) = &mut self.open else { return };
        open.text.push_str(&text);
        if open.kind == OutputKind::Search || (open.kind == OutputKind::Custom && text.is_empty()) {
            return;
        }
        let index = self.output.len();
        let mut data = json!({ "item_id": open.item["id"], "output_index": index, "delta": text });
        if !matches!(open.kind, OutputKind::Call | OutputKind::Custom) {
            data[open.kind.part_names().1] = json!(0);
        }
        let name = format!("response.{}.delta", open.kind.text_event());
        if let Some(tokens) = tokens {
            let tokens = if self.with_logprobs { tokens } else { Vec::new() };
            let logprobs: Vec<Value> =
                tokens.into_iter().map(|token| json!(TokenLogprob::of(token))).collect();
            open.logprobs.extend(logprobs.iter().cloned());
            data["logprobs"] = json!(logprobs);
        }
        out.push(self.event(&name, data));
    }

    fn close(&mut self, status: &str, out: &mut Vec<Value>) {
        if let Some(rest) = self.open.as_mut().filter(|open| open.kind == OutputKind::Custom) {
            let rest = rest.freeform.finish();
            self.write_read(rest, None, out);
        }
        let Some(OpenItem { kind, mut item, text, logprobs, .. }) = self.open.take() else { return };
        let (id, index) = (item["id"].clone(), self.output.len());
        let place = || json!({ "item_id": id, "output_index": index });
        let done = format!("response.{}.done", kind.text_event());
        match part(kind, &text, &logprobs) {
            None if kind == OutputKind::Search => {
                item["arguments"] = serde_json::from_str(&text).unwrap_or_else(|_| json!({}));
            }
            None if kind == OutputKind::Custom => {
                let mut data = place();
                data["input"] = json!(text);
                out.push(self.event(&done, data));
                item["input"] = json!(text);
            }
            None => {
                let mut data = place();
                data["arguments"] = json!(text);
                data["name"] = item["name"].clone();
                out.push(self.event(&done, data));
                item["arguments"] = json!(text);
            }
            Some(part) => {
                let (key, index, name) = kind.part_names();
                let mut data = place();
                (data[index], data["text"]) = (json!(0), json!(text));
                if kind == OutputKind::Message {
                    data["logprobs"] = json!(logprobs);
                }
                out.push(self.event(&done, data));
                let mut data = place();
                (data[index], data["part"]) = (json!(0), json!(part));
                out.push(self.event(&format!("response.{name}.done"), data));
                item[key] = json!([part]);
            }
        }
        item["status"] = json!(status);
        out.push(self.event("response.output_item.done", json!({ "output_index": index, "item": item })));
        self.output.push(item);
    }
}

/// Adds `timings` to an event, if there are any.
pub(super) fn with_timings(mut event: Value, timings: Option<&Value>) -> Value {
    if let Some(timings) = timings {
        event["timings"] = timings.clone();
    }
    event
}

fn message() -> Value {
    json!({ "id": "", "type": "message", "role": "assistant", "content": [], "status": "in_progress" })
}

/// The only part of an item's content; `None` for a call.
fn part(kind: OutputKind, text: &str, logprobs: &[Value]) -> Option<Value> {
    match kind {
        OutputKind::Reasoning => Some(json!({ "type": "reasoning_text", "text": text })),
        OutputKind::Summary => Some(json!({ "type": "summary_text", "text": text })),
        OutputKind::Message => {
            Some(json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs }))
        }
        OutputKind::Call | OutputKind::Custom | OutputKind::Search => None,
    }
}

/// Makes the item of a call.
fn call(id: &str, tool: Tool) -> (OutputKind, Value) {
    let mut item = json!({ "id": "", "call_id": id, "status": "in_progress" });
    let kind = match tool.kind {
        tools::ToolKind::Function => {
            (item["type"], item["arguments"]) = (json!("function_call"), json!(""));
            OutputKind::Call
        }
        tools::ToolKind::Custom => {
            (item["type"], item["input"]) = (json!("custom_tool_call"), json!(""));
            OutputKind::Custom
        }
        tools::ToolKind::Search => {
            (item["type"], item["arguments"]) = (json!("tool_search_call"), json!({}));
            item["execution"] = json!("client");
            return (OutputKind::Search, item);
        }
    };
    item["name"] = json!(tool.name);
    if let Some(namespace) = tool.namespace {
        item["namespace"] = json!(namespace);
    }
    (kind, item)
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(reason: StopReason) -> Finish {
        Finish { reason, usage: Usage::default(), timings: engine::Timings::default(), seed: 0 }
    }

    #[test]
    fn items_open_and_close_in_order_and_make_the_response() {
        let mut events = ResponseEvents::new(Map::new(), false, false, Tools::default());
        let mut all = events.start();
        for delta in [
            Delta::Reasoning("a".into()),
            Delta::Content { text: "h".into(), tokens: Vec::new() },
            Delta::Content { text: "i".into(), tokens: Vec::new() },
            Delta::CallBegin { index: 0, id: "call_0".into(), name: "f".into() },
            Delta::CallArguments { index: 0, text: "{}".into() },
            Delta::CallBegin { index: 1, id: "call_1".into(), name: "g".into() },
        ] {
            all.extend(events.push(delta));
        }
        let (last, response) = events.finish(&finish(StopReason::ToolCalls));
        all.extend(last);
        let names: Vec<&str> = all
            .iter()
            .map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap())
            .collect();
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(names, expected);
        assert!(all.iter().enumerate().all(|(n, event)| event["sequence_number"] == n));
        let kinds: Vec<&str> = response["output"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
        assert_eq!(response["output"][1]["content"][0]["text"], "hi");
        assert_eq!(response["output"][2]["arguments"], "{}");
        // Each added part is later completed at the same index.
        let of = |name: &str| -> Vec<(Value, Value)> {
            let events = all.iter().filter(|event| event["type"] == format!("response.output_item.{name}"));
            events.map(|event| (event["output_index"].clone(), event["item"]["id"].clone())).collect()
        };
        assert_eq!(of("added"), of("done"));
    }

    #[test]
    fn calls_have_the_names_and_shapes_of_the_client() {
        let function = json!({ "type": "function", "name": "close", "parameters": {} });
        let tools = Tools::of_responses(&[
            json!({ "type": "namespace", "name": "agents", "tools": [function] }),
            json!({ "type": "custom", "name": "patch" }),
            json!({ "type": "tool_search", "execution": "client", "parameters": {} }),
        ]);
        let mut events = ResponseEvents::new(Map::new(), false, false, tools.unwrap());
        let mut all = Vec::new();
        let calls = [
            ("agents__close", "{}"),
            ("patch", "{\"input\": \"a\\nb\"}"),
            ("tool_search", "{\"query\":\"q\"}"),
        ];
        for (index, (name, arguments)) in calls.into_iter().enumerate() {
            all.extend(events.push(Delta::CallBegin { index, id: format!("c{index}"), name: name.into() }));
            for piece in arguments.split_inclusive('\\') {
                all.extend(events.push(Delta::CallArguments { index, text: piece.into() }));
            }
            all.extend(events.push(Delta::CallEnd { index }));
        }
        let (_, response) = events.finish(&finish(StopReason::ToolCalls));
        let found = |index: usize, key: &str| response["output"][index][key].clone();
        assert_eq!((found(0, "namespace"), found(0, "name")), (json!("agents"), json!("close")));
        assert_eq!((found(1, "type"), found(1, "input")), (json!("custom_tool_call"), json!("a\nb")));
        assert_eq!(
            (found(2, "type"), found(2, "arguments")),
            (json!("tool_search_call"), json!({ "query": "q" }))
        );
        let of_custom = all.iter().filter(|event| {
            event["type"].as_str().is_some_and(|name| name.starts_with("response.custom_tool_call_input"))
        });
        let texts: Vec<&str> =
            of_custom.map(|event| event["delta"].as_str().or(event["input"].as_str()).unwrap()).collect();
        assert_eq!(texts, ["a", "\nb", "a\nb"]);
    }

    #[test]
    fn reasoning_may_be_its_own_summary() {
        let mut events = ResponseEvents::new(Map::new(), false, true, Tools::default());
        let mut all = events.push(Delta::Reasoning("a".into()));
        let (last, response) = events.finish(&finish(StopReason::End));
        all.extend(last);
        let names: Vec<&str> = all.iter().map(|event| event["type"].as_str().unwrap()).collect();
        let expected = [
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
            "response.completed",
        ];
        assert_eq!(names, expected);
        assert!(all[1..5].iter().all(|event| event["summary_index"] == 0));
        assert_eq!(response["output"][0]["summary"], json!([{ "type": "summary_text", "text": "a" }]));
    }

    #[test]
    fn an_answer_that_was_cut_is_incomplete_and_one_without_words_is_a_message() {
        let mut events = ResponseEvents::new(Map::new(), false, false, Tools::default());
        let (all, response) = events.finish(&finish(StopReason::MaxTokens));
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(response["output"][0]["status"], "incomplete");
        assert_eq!(all.last().unwrap()["type"], "response.incomplete");
        let mut events = ResponseEvents::new(Map::new(), false, false, Tools::default());
        let (all, response) = events.finish(&finish(StopReason::Failed("broken".into())));
        assert_eq!((&response["error"]["message"], &response["output"]), (&json!("broken"), &json!([])));
        assert_eq!(all.last().unwrap()["type"], "response.failed");
    }
}
