//! `PUT` and dry run of a service.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use serde_json::{Map, Value};
use tokio::task::spawn_blocking;
use weir_model::ValidationError;
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;
use weir_source::ServiceConfig;

use super::OperatorApi;
use super::access::Caller;
use super::conditions::precondition;
use super::document::{service, status_of};
use super::dry_run::Part;
use super::moves::{EditedBy, ServicePut};
use super::problems;
use super::validation::{self, ParsedDocument};
use crate::catalog::{AppliedEdit, Edit, Outcome};

impl OperatorApi {
    pub(super) async fn put_service(
        &self,
        name: &ServiceName,
        head: &Parts,
        body: Bytes,
        by: &Caller,
    ) -> Result<Response<Body>, Problem> {
        let mut precondition = precondition(&head.headers)?;
        let ParsedDocument { document, based_on } = self.read_service(name, body.clone()).await?;
        precondition.based_on = based_on;
        let to = document.home().clone();
        let edit = Edit::PutService(document.into());
        let edited = match &self.members {
            None => self.editor.edit(edit, precondition).await?,
            Some(members) => {
                let put = ServicePut { service: name, to: to.clone(), edit, precondition, head, body, by };
                match self.put_in_cluster(members, put).await? {
                    EditedBy::Me(edited) => edited,
                    EditedBy::Other(answer) => return Ok(answer),
                }
            }
        };
        let AppliedEdit { outcome, snapshot } = edited;
        // A move that failed may have withdrawn the service here: it is published again.
        if let Some(worker) = self.catalog.repository(&to).filter(|_| outcome == Outcome::Unchanged) {
            worker.resolve_all();
        }
        service(&snapshot, name, status_of(outcome), head)
    }

    async fn read_service(&self, name: &ServiceName, body: Bytes) -> Result<ParsedDocument<ServiceConfig>, Problem> {
        let (text, definitions) = (name.to_string(), self.catalog.snapshot().definitions.clone());
        let is_in_cluster = self.members.is_some();
        let read = move || {
            let by_field = |fields: &Map<String, Value>| {
                validation::wrong_ref(fields, |repository| definitions.kind_of(repository)).into_iter().collect()
            };
            let by_names = |document: &ServiceConfig| validation::wrong_parts(document, &definitions, is_in_cluster);
            let mut read = validation::read_with(&text, &body, by_field, by_names)?;
            read.document = read.document.with_home(|part| definitions.home_of(part));
            Ok::<_, Vec<ValidationError>>(read)
        };
        let read = spawn_blocking(read).await.map_err(problems::failed)?;
        let read = match read {
            Ok(read) => self.check_plan(&read.document).await?.map_or(Ok(read), |error| Err(vec![error])),
            invalid => invalid,
        };
        read.map_err(|errors| problems::invalid_document("service", name, &errors))
    }

    pub(super) async fn dry_run(
        &self,
        name: &ServiceName,
        head: &Parts,
        body: Bytes,
    ) -> Result<Response<Body>, Problem> {
        let part = Part::parse(head.uri.query())?;
        let document = if body.is_empty() { None } else { Some(self.read_service(name, body).await?.document.into()) };
        self.dry_runs.answer(name, document, part).await
    }
}
