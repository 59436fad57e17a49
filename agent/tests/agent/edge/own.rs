//! What an edge answers to the agent itself: batch polls, events, what it runs, heartbeats.

use super::*;

impl Answers {
    /// Knows the agent from now on, and assigns these services to it.
    pub(crate) fn assign(&self, services: &[&ServiceName]) {
        let assigned = services.iter().map(|service| (*service).clone()).collect();
        self.state().own.get_or_insert_default().assigned = assigned;
    }

    /// Asserts these labels of the agent from now on.
    pub(crate) fn label(&self, json: &str) {
        self.state().own.get_or_insert_default().labels = serde_json::from_str(json).expect("labels");
    }

    /// Batch polls have this status from now on.
    pub(crate) fn fail_batch_polls(&self, status: impl Into<Option<u16>>) {
        self.state().own.get_or_insert_default().fails = status.into();
    }

    /// Batch polls have this age from now on.
    pub(crate) fn age(&self, seconds: u64) {
        self.state().own.get_or_insert_default().age = Some(seconds);
    }

    /// The status and query of each batch poll.
    pub(crate) fn batch_polls(&self) -> Vec<(u16, String)> {
        self.state().own.as_ref().map_or_else(Vec::new, |own| own.polls.clone())
    }

    /// The messages about what agents run, of which some were not accepted.
    pub(crate) fn observed(&self) -> Vec<AgentObserved> {
        self.state().own.as_ref().map_or_else(Vec::new, |own| own.observed.clone())
    }

    /// The last row of a service in these messages.
    pub(crate) fn observed_row(&self, service: &ServiceName) -> Option<Row> {
        let state = self.state();
        let messages = state.own.iter().flat_map(|own| own.observed.iter().rev());
        messages.flat_map(|message| &message.rows).find(|row| row.service == *service).cloned()
    }

    /// The number of these messages.
    pub(crate) fn observed_count(&self) -> usize {
        self.state().own.as_ref().map_or(0, |own| own.observed.len())
    }

    /// The next of these messages gets this answer.
    pub(crate) fn answer_observed(&self, status: u16) {
        self.state().own.get_or_insert_default().observed_answers.push_back(status);
    }

    /// Answers as another run of the edge from now on.
    pub(crate) fn begin_instance(&self, instance: &'static str) {
        self.state().own.get_or_insert_default().instance = Some(instance);
    }

    /// The event streams that are open.
    pub(crate) fn streams(&self) -> usize {
        self.state().own.as_ref().map_or(0, |own| own.streams.iter().filter(|stream| !stream.is_closed()).count())
    }

    /// The version of HTTP of each event stream since the start.
    pub(crate) fn opened_streams(&self) -> Vec<Version> {
        self.state().own.as_ref().map_or_else(Vec::new, |own| own.opened.clone())
    }

    /// Ends all event streams.
    pub(crate) fn end_streams(&self) {
        self.state().own.iter_mut().for_each(|own| own.streams.clear());
    }

    /// Sends an event to all agents.
    pub(crate) fn send(&self, kind: AgentEventKind) {
        self.send_within(None, kind);
    }

    /// The same, with a time over which agents spread what follows.
    pub(crate) fn send_within(&self, spread: Option<Duration>, kind: AgentEventKind) {
        let line = AgentEvent { cursor: "a1".parse().expect("a cursor"), spread, kind }.line();
        let state = self.state();
        state.own.iter().flat_map(|own| &own.streams).for_each(|stream| drop(stream.send(line.clone())));
    }

    /// The row of a service.
    pub(crate) fn row(&self, service: &ServiceName) -> BatchRow {
        row(&self.state(), service)
    }

    pub(super) fn of_instance(&self, mut response: Response<Body>) -> Response<Body> {
        if let Some(instance) = self.state().own.as_ref().and_then(|own| own.instance) {
            response.headers_mut().insert("weir-edge-instance", http::HeaderValue::from_static(instance));
        }
        response
    }

    pub(super) fn batch_poll(&self, request: &Request<RequestBody>) -> Response<Body> {
        let mut state = self.state();
        let Some(own) = &state.own else { return status(404) };
        let query = request.uri().query().unwrap_or_default().to_owned();
        let patterns =
            query::pairs(&query).unwrap().into_iter().find(|(key, _)| *key == "services").map(|(_, value)| value);
        let services: Vec<ServiceName> = match patterns {
            None => own.assigned.clone(),
            Some(patterns) => {
                let patterns: Vec<NameGlob> = patterns.split(',').map(|glob| glob.parse().expect("a glob")).collect();
                let is_known = |service: &&ServiceName| patterns.iter().any(|glob| glob.matches(service.as_str()));
                let known = state.published.keys().filter(is_known).cloned();
                known.chain(patterns.iter().filter_map(|glob| glob.as_str().parse().ok())).collect()
            }
        };
        let rows = BatchPoll::new(services.iter().map(|service| row(&state, service)).collect()).expect("a few");
        let (body, fails, age) = (BatchPoll::with_labels(&rows.to_json(), &own.labels), own.fails, own.age);
        let tag = BatchPoll::etag(&body);
        let is_known = request.headers().get("if-none-match").is_some_and(|known| *known == tag);
        let code = fails.unwrap_or(if is_known { 304 } else { 200 });
        state.own.as_mut().expect("it is there").polls.push((code, query));
        let body = match code {
            200 => Body::from(body),
            401 => Body::from(br#"{"detail":"The token has expired."}"#.to_vec()),
            _ => Body::Empty,
        };
        let mut response = Response::builder().status(code).header("etag", tag);
        if code == 401 {
            response = response.header("content-type", "application/problem+json");
        }
        if let Some(age) = age {
            response = response.header("age", age);
        }
        response.body(body).expect("a response")
    }

    pub(super) fn events(&self, version: Version) -> Response<Body> {
        let Some(own) = &mut self.state().own else { return status(404) };
        let (sender, received) = mpsc::unbounded_channel();
        let cursor = "a1".parse().expect("a cursor");
        sender.send(AgentEvent { cursor, spread: None, kind: AgentEventKind::Heartbeat }.line()).expect("it is open");
        own.streams.push(sender);
        own.opened.push(version);
        let next = |mut received: mpsc::UnboundedReceiver<Bytes>| async {
            let line = received.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(line)), received))
        };
        Response::new(Body::stream(StreamBody::new(stream::unfold(received, next).boxed())))
    }

    pub(super) async fn observe(&self, request: Request<RequestBody>) -> Response<Body> {
        let body = request.into_body().read(MAX_MESSAGE_BYTES).await.expect("a body within the limit");
        let Some(own) = &mut self.state().own else { return status(404) };
        own.observed.push(AgentObserved::parse(&body).expect("a message"));
        let code = own.observed_answers.pop_front().unwrap_or(204);
        let retry_after = (code == 429).then_some(("retry-after", "1"));
        let mut response = status(code);
        response.headers_mut().extend(
            retry_after
                .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))),
        );
        response
    }
}

fn row(state: &State, service: &ServiceName) -> BatchRow {
    let absent = BatchRow {
        service: service.clone(),
        state: RowState::NotPublished,
        digest: None,
        generation: None,
        revision_id: None,
        etag: None,
    };
    let Some(published) = state.published.get(service) else { return absent };
    BatchRow {
        state: RowState::Current,
        digest: Some(published.digest),
        generation: Some(published.generation),
        revision_id: Some(published.revision_id().parse().expect("a revision")),
        etag: Some(format!("\"{}\"", published.generation)),
        ..absent
    }
}

impl Answers {
    pub(super) async fn heartbeats(&self, request: Request<RequestBody>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.read(MAX_REQUEST_BYTES).await.expect("a small body");
        let wanted = HeartbeatRequest::parse(&body).expect("a request for statements").services;
        let mut state = self.state();
        state.seen.push(Seen {
            method: head.method,
            path: head.uri.path().to_owned(),
            version: head.version,
            headers: head.headers,
        });
        let of = |service| {
            let envelope = state.statements.get(&service)?.clone();
            Some(SignedFreshness { envelope, staged: state.staged_statements.get(&service).cloned(), service })
        };
        let services = wanted.into_iter().filter_map(of).collect();
        Response::new(Body::from(HeartbeatAnswer { services }.to_json()))
    }
}
