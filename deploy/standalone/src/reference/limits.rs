//! `limits.md`: what is bounded, by which key or constant, and what happens beyond it.

use super::compare;
use super::source::constants;

/// The page. In braces: a file and its constant, whose value is put there.
const PAGE: &str = r#"# Limits

Every queue, table, cache and wait has a bound. One with a key can be changed in the [configuration](configuration.md). One with
a metric shows its use in `weir_bound_in_use` and its value in `weir_bound_limit`, with this label `bound`.

## Every listener

| what | bound | metric | beyond it |
|---|---|---|---|
| connections, over TCP and over QUIC each | {shared/runtime/src/serve/mod.rs MAX_CONNECTIONS} |  | TCP: they wait in the kernel's backlog. QUIC: refused. Metric: `weir_http_connections_limit`. Over TCP at most three quarters of the file descriptors that the process may open |
| connections, and QUIC handshakes, of one address (IPv6: of one /64) | one in {shared/runtime/src/serve/mod.rs SOURCE_SHARE} of those |  | the new connection is closed. Metric: `weir_http_connections_limited_total`, bound `source`. Clients behind one NAT or proxy are one address |
| a TLS or QUIC handshake; then the time to the first accepted request | {shared/runtime/src/serve/mod.rs HEAD_TIMEOUT} |  | the connection is closed after the responses in flight. A request is accepted unless its status is 4xx. Metric: `weir_http_connections_limited_total`, bound `first_request` |
| headers of a request | {shared/runtime/src/serve/mod.rs MAX_HEADER_BYTES} |  | 431 |
| path and query | {shared/runtime/src/serve/mod.rs MAX_URL_BYTES} |  | 414 |
| a response of which the client takes nothing | {shared/runtime/src/serve/mod.rs STALL_TIMEOUT} |  | the stream is reset. Metric: `weir_http_stalled_total` |
| concurrent requests of an HTTP/2 connection | {shared/runtime/src/serve/http2/mod.rs MAX_STREAMS} |  | the stream is refused |
| HTTP/2 streams that a client reset before they were read | {shared/runtime/src/serve/http2/mod.rs MAX_PENDING_RESETS} |  | the connection is closed |
| HTTP/2 streams that the server reset for errors | {shared/runtime/src/serve/http2/mod.rs MAX_ERROR_RESETS} |  | the connection is closed |
| silence of an idle HTTP/2 connection | {shared/runtime/src/serve/http2/keep_alive.rs INTERVAL} |  | a ping is sent |
| a response to the ping | {shared/runtime/src/serve/http2/keep_alive.rs TIMEOUT} |  | the connection is closed |
| time between two requests of an HTTP/1.1 connection | {shared/runtime/src/serve/tcp_context.rs MAX_IDLE} |  | the connection is closed |
| unsent bytes of an HTTP/3 connection in memory | {shared/http3/src/endpoint.rs SEND_WINDOW} |  | nothing more is read until the client takes some |
| rest of a request body that nobody reads | {shared/runtime/src/serve/unread.rs MAX_BYTES} |  | the response is sent and the stream reset |
| lines of the access log in a second | `log.access_lines` |  | they are left out and counted. Metric: `weir_access_log_left_out_total` |
| bytes of a client after its connection was closed | {shared/runtime/src/serve/lingering.rs MAX_DISCARDED} |  | the connection is reset |

## Origin

| what | bound | metric | beyond it |
|---|---|---|---|
| listings of upstreams | `limits.concurrent_listings` | `listings` | polls wait |
| fetches | `limits.concurrent_fetches` | `fetches` | polls wait |
| first clones | half of `limits.concurrent_fetches`, and 1 | `large_fetches` | they wait |
| fetches of LFS objects | half of `limits.concurrent_fetches`, and 1 | `lfs_fetches` | they wait |
| listings of one host; the metric shows the busiest | `limits.concurrent_fetches_per_host` | `listings_per_host` | polls of the host wait |
| fetches of one host; the metric shows the busiest | `limits.concurrent_fetches_per_host` | `fetches_per_host` | polls of the host wait |
| requests to one host within ten seconds; the metric shows the busiest | `limits.requests_per_minute_per_host` | `burst_requests_per_host` | polls of the host wait |
| memory of fetches | from `upstreams.max_objects` and `upstreams.max_object` | `fetch_memory_bytes` | fetches wait |
| builds | `limits.concurrent_builds` | `builds` | they wait |
| builds of one repository | `limits.concurrent_builds` less 1, at least 1 |  | they wait |
| deltas that are made at a time | 1 |  | versions wait. Metric: `weir_origin_deltas_waiting` |
| size of a tarball for which deltas are made | `limits.max_delta_tarball` |  | it has none. Metric: `weir_origin_deltas_total` |
| versions whose deltas are being published | {origin/src/deltas.rs MAX_PUBLISHING} |  | the next deltas wait |
| mirrors in which refs are looked up | {origin/src/reconcile/context.rs CONCURRENT_RESOLUTIONS} | `ref_lookups` | they wait |
| records of parts of other owners that a repository reads at a time | {origin/src/reconcile/published_parts.rs CONCURRENT_READS} |  | they wait |
| bytes of published tarballs that are unpacked as parts of others | `upstreams.max_mirror` | `unpacked_part_bytes` | the build fails and is tried again |
| services for which the owner of parts is asked in one request | {shared/protocol/src/freshness.rs MAX_SERVICES} |  | it gets another request |
| composed services of which the log says once why they have no freshness statement | {origin/src/edge_api/heartbeats.rs MAX_UNSTATED} |  | it says so again |
| folders with refs that `weir up` watches | {origin/git/src/ref_watch.rs MAX_FOLDERS} |  | moved refs are found only by polls |
| mirrors that are read in full after a failure | {origin/src/reconcile/limiter.rs CONCURRENT_MIRROR_CHECKS} | `mirror_checks` | they wait |
| rebuilds of lost objects that wait, for each repository | {origin/src/reconcile/rebuild.rs REBUILD_QUEUE} |  | 503 |
| objects in memory to be sent | `limits.concurrent_objects` | `objects` | requests wait 10 s, then 503 |
| requests to the object store | {origin/store/src/objects.rs CONCURRENT_REQUESTS} | `store_requests` | they wait |
| a request to the object store, retries included | {origin/store/src/objects.rs REQUEST_DEADLINE} |  | it fails |
| searches for the version that refers to a lost object | {origin/src/edge_api/mod.rs REFERENCE_LOOKUPS} | `reference_lookups` | they wait 10 s, then 503 |
| a request that waits for the rebuild of an object | {origin/src/edge_api/object.rs REBUILD_WAIT} |  | 503 |
| event streams | `limits.event_streams` |  | 429. Metric: `weir_origin_event_streams_limit` |
| repositories, services, fetches and builds that `/v1/summary` lists | {origin/src/summary.rs MAX_LISTED} of each |  | it has their number |
| agents that edges report | `limits.observed_agents` | `observed_agents` | the agents give way that were silent longest. Then new ones are left out, and answers name the edge as incomplete |
| rows of agents: one for each service of each | `limits.observed_rows` | `observed_rows` | the same |
| rows of one agent | {shared/protocol/src/observed/mod.rs MAX_AGENT_ROWS} |  | further ones are left out, and answers name the edge as incomplete |
| messages of edges about what agents run that are processed at a time, one of each identity | {origin/src/observed.rs CONCURRENT_MESSAGES} | `observed_messages` | they wait |
| messages of one identity that wait | {origin/src/observed.rs WAITING_MESSAGES} |  | 429. Metric: `weir_origin_observed_messages_total` |
| services whose deliveries are counted by name | {origin/src/delivery.rs MAX_NAMED} |  | others are counted together. Metric: `weir_origin_delivery_seconds` |
| memory of rows | `limits.observed_bytes` | `observed_bytes` | the same; exceeded by one message at most |
| edges that report | {origin/observed/src/bounds.rs MAX_EDGES} | `observed_edges` | 429 for new ones |
| those of them with one certificate, or behind shields with it | `limits.observed_edges_per_identity` |  | 429 for new ones. Metric: `weir_origin_observed_messages_total` |
| an edge that reports nothing | {origin/observed/src/edge.rs EDGE_SILENT_AFTER} |  | answers name it as incomplete. Metric: `weir_origin_observed_incomplete_edges` |
| the same, until it is forgotten | {origin/observed/src/edge.rs EDGE_FORGOTTEN_AFTER} |  | its agents are silent |
| names that failed credentials claimed | {origin/observed/src/bounds.rs MAX_REFUSED_NAMES} |  | those refused longest ago are forgotten |
| an agent of which no edge hears | {origin/observed/src/bounds.rs AGENT_SILENT_AFTER} |  | it is silent. Metric: `weir_origin_observed_agents` |
| the same, until nobody waits for its rows | {origin/observed/src/bounds.rs AGENT_GONE_AFTER} |  | `unknown_gone` and `agents_without_rows_gone` count them |
| the same, until it is forgotten | {origin/observed/src/table.rs AGENT_FORGOTTEN_AFTER} |  | it is not listed |
| age of stored names of agents and edges | {origin/src/last_seen.rs STORE_INTERVAL} |  | a kill of all origins forgets agents that are newer |
| questions about what agents run | {origin/src/observed.rs CONCURRENT_QUERIES} | `fleet_queries` | they wait |
| segments of a history (64 KiB each) in which `lacks` finds a revision, the newest | {origin/publish/src/read/queries.rs MAX_SEGMENTS} |  | rows are counted as unknown |
| repositories whose segments are in memory, and that one question with `lacks` is about | {origin/publish/src/read/positions.rs MAX_REPOSITORIES} |  | they are read again; 400 |
| pins that the answer to it names | {origin/src/operator_api/observed.rs MAX_PINS} |  | the first by name |
| refs of a repository whose last tip its record has | {origin/publish/src/publisher.rs MAX_REFS} |  | a tip may be stored twice |
| names that operators delete there | {origin/src/observed.rs MAX_DELETIONS} |  | they wait |
| events in memory | `limits.events` |  | the oldest are dropped; edges that missed them get a snapshot |
| an event stream whose reader takes nothing | {shared/runtime/src/serve/part_writer.rs PART_TIMEOUT} |  | the stream is ended |
| changes of operators in progress | {origin/src/catalog/owner.rs QUEUE} | `edits` | 503 |
| several origins: requests for names of services | {origin/src/names/name_records.rs MAX_CALLERS} | `name_requests` | they wait |
| several origins: names records that are read or written at a time | {origin/src/names/name_records.rs CONCURRENT_BUCKETS} |  | they wait |
| dry runs | `limits.concurrent_dry_runs` | `dry_runs` | 503 |
| a dry run | {origin/src/operator_api/dry_run.rs DEADLINE} |  | 503 |
| diffs | {origin/src/versions.rs CONCURRENT_DIFFS} | `diffs` | they wait 10 s, then 503 |
| a diff | {origin/src/versions.rs DIFF_TIMEOUT} |  | 503 |
| the text of a file in a diff | {origin/src/diff.rs MAX_TEXT_BYTES} |  | the file is named without it |
| all texts of a diff | {origin/src/diff.rs MAX_TEXTS_BYTES} |  | further files are named without it |
| rollbacks | {origin/src/versions.rs CONCURRENT_ROLLBACKS} | `rollbacks` | they wait 10 s, then 503 |
| versions that are built and staged | {origin/src/versions.rs CONCURRENT_STAGINGS} | `stagings` | they wait 10 s, then 503 |
| deliveries of webhooks | {origin/src/operator_api/webhook.rs MAX_DELIVERIES} | `deliveries` | they wait 5 s, then 429 |
| more of them for repositories of which one was authentic since the start, one at a time for each | {origin/src/operator_api/webhook.rs RESERVED_DELIVERIES} | `reserved_deliveries` | they wait 5 s, then 429 |
| deliveries from one address (IPv6: from one /64) | {origin/src/operator_api/webhook.rs MAX_DELIVERIES_PER_SOURCE} |  | 429. Metric: `weir_origin_webhooks_total`, result `source_limited` |
| a delivery: its wait, its body and the check of its signature | {origin/src/operator_api/webhook.rs DELIVERY_TIMEOUT} |  | 408 |
| body of a webhook | {origin/src/operator_api/webhook.rs MAX_BODY_BYTES} |  | 413 |
| a definition that an operator sends | {origin/src/operator_api/mod.rs MAX_DOCUMENT_BYTES} |  | 413 |
| a repository's document that its owner answers, for an operator with `services` | {origin/src/operator_api/hidden.rs MAX_ANSWER_BYTES} |  | 503 |
| a batch of documents | {origin/src/operator_api/batch.rs MAX_BATCH_BYTES} |  | 413 |
| documents of a batch | {origin/src/operator_api/batch.rs MAX_BATCH_DOCUMENTS} |  | 400 |
| dry runs of assignments | {origin/src/operator_api/fleet.rs ASSIGNMENT_DRY_RUNS} | `assignment_dry_runs` | 503 |
| agents, assignments, issuers | `limits.max_agents`, `limits.max_assignments`, `limits.max_issuers` | `agents`, `assignments`, `issuers` | 429 |
| issuers with the URL of their keys | `limits.max_issuer_urls` | `issuer_urls` | 429 |
| freezes | {origin/src/freezes/store.rs MAX_FREEZES} |  | 429. Metric: `weir_origin_freezes` |
| patterns of services of a freeze | {origin/rollout/src/freeze.rs MAX_PATTERNS} |  | 400 |
| plans of rollouts, of a configuration file and of operators each | {origin/src/config/rollouts.rs MAX_ROLLOUTS} |  | the file is refused; 429. Metric: `weir_origin_rollout_plans` |
| stages of a plan | {origin/rollout/src/plan.rs MAX_STAGES} |  | the file is refused; 400 |
| bytes of the record of freezes, and of that of plans | {origin/src/named_list/record.rs MAX_BYTES} |  | 429 |
| services in the state of a plan | {origin/src/operator_api/plans.rs MAX_SERVICES_SHOWN} |  | they are counted |
| memory of their documents, as JSON | `limits.fleet_bytes` | `fleet_bytes` | 429 |
| one of 64 shards of a kind, as JSON | {shared/protocol/src/access_list/shard.rs MAX_SHARD_BYTES} |  | 429 |
| agents, assignments, issuers in a list for edges of the release before | 10,000, 1,000, 2,000; 10 MiB of JSON together |  | the kind is left out, and such edges keep what they have. Metric: `weir_origin_fleet_left_out` |
| the same in a cluster with an origin of the release before | 10,000, 1,000, 2,000; 1.5 MiB of JSON each |  | 429 |
| a page of a list | {origin/src/operator_api/page.rs MAX_LIMIT} |  | the next page has the rest |
| repositories, and services, in a page of `/status` | {shared/runtime/src/status_page.rs MAX_LIMIT} |  | the next page has the rest |
| repositories | `limits.max_repositories` |  | 429. Metric: `weir_origin_catalog_limit` |
| services | `limits.max_services` |  | 429. Metric: `weir_origin_catalog_limit` |
| a repository's changes that wait for a write of its record | {origin/publish/src/write/writer.rs MAX_WAITING} |  | they wait |
| writes of a repository's record in a bucket or etcd: time between two, on average | {origin/publish/src/write/write_pace.rs WRITE_INTERVAL} |  | changes are written together |
| the same: writes that may follow each other after a pause | {origin/publish/src/write/write_pace.rs WRITE_BURST} |  | changes are written together |
| a record | {origin/store/src/records/mod.rs MAX_RECORD_BYTES} |  | the write fails |
| a request for a record in a bucket | {origin/store/src/records/bucket.rs REQUEST_TIMEOUT} |  | a read fails; the outcome of a write is unknown |
| a listing of records in a bucket | {origin/store/src/records/bucket.rs LISTING_TIMEOUT} |  | it fails |
| a connection or a request to a member of etcd | {origin/store/src/records/etcd/client.rs REQUEST_TIMEOUT}, and half of the time that is left |  | the next member is used; the outcome of a write that was sent is unknown |
| an answer of etcd | {origin/store/src/records/etcd/client.rs MAX_RESPONSE_BYTES} |  | the request fails |
| history segments of a repository | {origin/publish/src/stored/history.rs MAX_SEGMENTS} |  | the oldest is dropped |
| pins and unpins that a history lists of one publication | {origin/publish/src/stored/history.rs MOST_ACTS} |  | older ones are not listed |
| selectors of agents that a version is staged for | {shared/protocol/src/staged.rs MAX_SELECTORS} |  | it is not staged |
| deleted services of a repository whose generation is stored | {origin/publish/src/remove/gc.rs MAX_TOMBSTONES} |  | the oldest is dropped; its next generation comes from the clock |
| entries of a folder, with those that are left out; entries of a directory that a symlink leads through | `limits.max_entries` |  | the service is unhealthy |
| `.gitattributes` of a directory and of those above it, together | {origin/git/src/tree/attributes.rs MAX_BYTES} |  | the service is unhealthy. Metric: `weir_origin_services_unhealthy` |
| steps of matching the paths of a build with `include`, `exclude` and `.gitattributes` | {origin/tarball/src/glob.rs MAX_MATCH_STEPS} |  | the service is unhealthy. Metric: `weir_origin_services_unhealthy` |
| steps of matching the path of a service's folder with the `.gitattributes` above it | {origin/git/src/tree/folder.rs MAX_MATCH_STEPS} |  | the service is unhealthy |
| commits that are read to find whether one is an ancestor of another | {origin/git/src/revision/ancestor.rs MAX_COMMITS} |  | it counts as none |
| revisions that webhooks named and no poll has found, of each service | {origin/source/src/standing.rs MAX_NAMED}, for {origin/source/src/standing.rs NAMED_FOR} |  | the one named longest ago is forgotten |
| versions that a range passes over because they cannot be read | {origin/source/src/passed_over.rs MAX_PASSED_OVER} |  | further ones are not named. Metric: `weir_origin_refs_left_out` |
| manifest of an OCI form | {shared/protocol/src/oci.rs MAX_MANIFEST_BYTES} |  | the chart or artifact is published as files |
| blobs beside the archive of a chart or an artifact, for its OCI form | {origin/source/src/oci/whole.rs MAX_OTHERS} of {origin/source/src/oci/whole.rs MAX_OTHER_BYTES} |  | it is published as files |
| `Chart.yaml` of a chart of a Helm repository, for its OCI form | {origin/source/src/helm/metadata.rs MAX_METADATA_BYTES} |  | it is published as files |
| fetches of an artifact of whose manifest something cannot be had | {origin/source/src/artifact/whole.rs LASTING} |  | it is published as files, or without what is attached to the manifest |
| signatures and attestations of an artifact, for its OCI form | {origin/source/src/oci/attachments.rs MAX_ATTACHED_BYTES} together |  | what does not fit is left out |
| requests for signatures in each place that cosign uses | {origin/source/src/oci/cosign.rs MAX_REQUESTS} |  | further ones are not looked at |
| an upstream's report of a refusal | {origin/upstream/src/http/report.rs MAX_BYTES} are read, within {origin/upstream/src/http/report.rs TIMEOUT}; {origin/upstream/src/server_report.rs MAX_CHARS} characters are shown |  | the rest is left out |
| a first poll for which the origin is not ready | {origin/src/reconcile/state.rs FIRST_POLL_WAIT} |  | it is ready without it |
| packs of a mirror | {origin/git/src/mirror/maintenance/due.rs PACKS_BEFORE_REPACK} |  | the mirror is repacked |

## Edge

| what | bound | metric | beyond it |
|---|---|---|---|
| objects on disk | `cache.disk` | `disk_bytes` | eviction |
| objects in memory | `cache.memory` | `memory_bytes` | eviction |
| other objects in memory: of fills, or being read | `cache.in_flight` | `in_flight_bytes` | requests wait up to `cache.fill_wait` |
| parsed manifests | {edge/cache/src/manifests.rs MAX_BYTES} | `parsed_manifest_bytes` | eviction |
| fills, from all origins and shields | `cache.fills` for each | `fills` | they wait |
| fills under way or waiting | {edge/cache/src/in_flight.rs MAX_IN_FLIGHT} | `queued_fills` | 503 |
| requests that wait for an object | `cache.waiters` | `fill_waiters` | 503 |
| attempts of a fill | {edge/cache/src/fill.rs MAX_ATTEMPTS} |  | the response is reset, or 503 |
| rate of a fill, in bytes per second | {edge/cache/src/fill.rs MIN_RATE} |  | the attempt fails |
| tarballs decoded for clients; half of them for clients with one name | `cache.decoders` | `decoders` | 503 |
| tarballs compressed with gzip for clients; half of them for clients with one name | `cache.encoders` | `gzip_encoders` | another encoding, or 503 |
| reads from disk | {edge/cache/src/disk/mod.rs MAX_READS} |  | they wait |
| a read from disk | {edge/cache/src/disk/mod.rs READ_TIMEOUT} |  | the object is fetched |
| writes to disk | {edge/cache/src/disk/mod.rs MAX_WRITES} |  | they wait |
| an object that waits to be written | {edge/cache/src/disk/mod.rs WRITE_WAIT} |  | it is not stored |
| services in the catalog | `cache.services` | `services` | eviction |
| memory of the catalog | `cache.service_bytes` | `service_bytes` | eviction |
| names and generations of evicted services | {edge/src/catalog/entries.rs MAX_FLOORS} | `service_floors` | the oldest is dropped |
| descriptors of past versions | {edge/src/catalog/past_versions.rs MAX_BYTES} | `past_version_bytes` | eviction |
| lists of the versions of services | {edge/src/catalog/version_lists.rs MAX_BYTES} | `version_list_bytes` | eviction |
| the same on disk, for a start while no origin answers | {edge/src/catalog/list_files.rs MAX_FILES} of at most {edge/src/catalog/list_files.rs MAX_FILE_BYTES} | `version_list_files` | further ones are in memory only |
| queries for such lists | {edge/src/catalog/queries.rs MAX_QUERIES} | `version_list_queries` | the last list, or 503 |
| time between two queries for the list of a service | {edge/src/catalog/version_lists.rs MIN_LIST_INTERVAL} |  | the last list is used |
| queries about services | {edge/src/catalog/queries.rs MAX_QUERIES} | `queries` | a stale version, or 503 |
| queries about versions | {edge/src/catalog/queries.rs MAX_QUERIES} | `version_queries` | 503 |
| queries about versions of one service | {edge/src/catalog/past_versions.rs MAX_QUERIES_PER_SERVICE} |  | 503 |
| the first response about a service | {edge/src/catalog/queries.rs FIRST_QUERY_TIMEOUT} |  | 504 |
| time between two forced refreshes of a service | {edge/src/catalog/lookup.rs MIN_FORCED_INTERVAL} |  | they share a query |
| failed and unknown services | {edge/src/catalog/negative_cache.rs MAX_ENTRIES} | `cached_failures` | eviction |
| failed and unknown versions | {edge/src/catalog/negative_cache.rs MAX_ENTRIES} | `cached_version_failures` | eviction |
| a failure in the cache | {edge/src/catalog/negative_cache.rs FAILURE_TTL} |  | the origin is queried again |
| refs that an origin announced | {edge/src/catalog/revisions.rs MAX_REFS} | `announced_refs` | further ones are dropped |
| origins, with those that left and whose place no new member has taken | {edge/src/origin_client/mod.rs MAX_ORIGINS} | `origins` | further ones are not used |
| event streams to other edges | `peers.streams` | `peer_streams` | 429 |
| changes that such a stream may be behind | {edge/src/catalog/changes.rs MAX_BEHIND} |  | it ends |
| shields that are tried for an object | {edge/src/origin_client/shields.rs MAX_TRIED} |  | the origins are asked |
| edges that a request has passed | {edge/src/origin_client/shields.rs MAX_HOPS} |  | the origins are asked |
| batch polls in progress of agents with one name | {edge/src/self_api/mod.rs MAX_POLLS_PER_AGENT} |  | 429. Metric: `weir_edge_requests_total` |
| messages of agents with one name about what they run | {edge/src/self_api/message_rate.rs MAX_BURST} at once, then {edge/src/self_api/message_rate.rs MESSAGES_PER_SECOND} a second |  | 429; nothing is read. Metric: `weir_edge_agent_observed_messages_total` |
| patterns with `*` in `services`, times the services that the credential opens | {edge/src/self_api/group_key.rs MAX_COMPARISONS} |  | 422. Metric: `weir_edge_requests_total` |
| memory for what groups of agents follow | {edge/src/self_api/groups.rs MAX_FOLLOWING_BYTES} | `agent_following_bytes` | eviction |
| memory for which agent is in which group | {edge/src/self_api/groups.rs MAX_MEMBER_BYTES} | `agent_group_bytes` | eviction |
| memory for the rows of agents that get staged versions | {edge/src/self_api/variants.rs MAX_BYTES} | `agent_staged_bytes` | eviction |
| what agents run | `agents.observed_bytes` | `agent_observed_bytes` | 429; nothing is dropped. Metric: `weir_edge_agent_observed_messages_total` |
| rows of one agent, those included that were removed within ten minutes | {shared/protocol/src/observed/mod.rs MAX_AGENT_ROWS} |  | 429. Metric: `weir_edge_agent_observed_messages_total` |
| shards of access lists that are sent to other edges at a time | {edge/src/peer_api/shards.rs CONCURRENT_SHARDS} | `peer_shards` | they wait 10 s, then 503 |
| messages of other edges that a shield passes on | {edge/src/peer_api/observed.rs CONCURRENT_MESSAGES} | `peer_messages` | 429 |
| one of them at an origin | {edge/src/peer_api/observed.rs ORIGIN_TIMEOUT} |  | the other origins count |
| silence of an agent | {edge/src/observed/table.rs FORGOTTEN_AFTER} |  | what it runs is forgotten. Metric: `weir_edge_agents` |
| names that failed credentials claimed | {edge/src/access/refused.rs MAX_NAMES} | `refused_names` | the one that was refused the longest ago is forgotten |
| pause that an origin may ask for before it is told more of what agents run (`Retry-After`) | {edge/src/observed/delivery.rs MAX_RETRY_AFTER} |  | the longest pause |
| agents that a document of `/v1/explain` or `/status` lists | {edge/src/observed/view.rs MAX_LISTED} |  | the document has their number |
| verified tokens | `auth.cached_tokens` | `cached_tokens` | eviction |
| issuers of the edge and of its origins | `auth.max_issuers` | `issuers` | those that were defined last are left out |
| issuers of origins with the URL of their keys | `auth.max_issuer_urls` | `issuer_urls` | the keys of those that were defined last are not fetched. Metric: `weir_edge_access_issuers_not_fetched` |
| fetches of keys of issuers: of the configuration | {edge/src/access/issuers/mod.rs MAX_FETCHES} |  | they wait |
| the same of origins | {edge/src/access/issuers/of_origins.rs MAX_FETCHES} |  | they wait |
| a fetch of keys | {edge/src/access/issuers/fetch.rs FETCH_TIMEOUT} |  | the last valid keys apply. Metric: `weir_edge_access_issuers_failing` |
| entries of one `iss` whose keys are fetched for a token with an unknown key | {edge/src/access/issuers/table.rs MAX_KEY_REQUESTS} |  | the others are fetched when they are due |
| memory of the documents of origins, as JSON | `auth.fleet_bytes` | `fleet_bytes` | the list before is used. Metric: `weir_edge_access_lists_incomplete` |
| shards of access lists that are fetched at a time, from each origin | {edge/src/origin_follower/shards.rs CONCURRENT} |  | they wait |
| services with a freshness statement | {edge/src/heartbeats.rs MAX_CACHED} | `freshness_statements` | none is given for further services |
| age of a freshness statement that is passed on | {edge/src/heartbeats.rs MAX_AGE} |  | the origin is asked |
| members of a cluster that are asked for a statement | {edge/src/origin_client/mod.rs MAX_HEARTBEAT_ORIGINS} |  | none is given |
| prefetches | {edge/src/origin_follower/prefetcher.rs MAX_CONCURRENT_PREFETCHES} |  | they wait |
| prefetches that wait | {edge/src/origin_follower/prefetcher.rs MAX_QUEUED} |  | further ones are dropped |
| silence of an event stream | three heartbeats: 15 s |  | it is opened again |
| headers of an origin's response | {edge/src/origin_client/connection.rs HEAD_TIMEOUT} |  | the request fails |
| headers of a response with an object | {edge/src/origin_client/connection.rs OBJECT_HEAD_TIMEOUT} |  | the attempt fails |
| failures in a row of an origin | {edge/src/origin_client/breaker.rs FAILURES_TO_OPEN} |  | its circuit opens |
| pause of an open circuit | {edge/src/origin_client/breaker.rs MAX_BACKOFF} |  | a probe is sent |
| samples of the last hour for `/v1/summary` | one each {edge/src/history/ring.rs INTERVAL} |  | the oldest is dropped |
| agents that `/v1/summary` lists | {edge/src/summary.rs MAX_AGENTS} |  | it has their number |
| services that it names | {edge/src/summary.rs MAX_SERVICES} |  | it has their number |
| services in a page of `/status` | {shared/runtime/src/status_page.rs MAX_LIMIT} |  | the next page has the rest |

## Agent

| what | bound | metric | beyond it |
|---|---|---|---|
| downloads | `max_downloads` |  | they wait |
| downloads that broke off and wait for their rest | {agent/src/poll/interrupted.rs MAX_INTERRUPTED} |  | others start over |
| time for which they wait | {agent/src/poll/interrupted.rs KEPT_FOR} |  | they start over |
| size of a tarball | `max_tarball_bytes` |  | it is refused |
| entries of a tarball | `max_files` |  | it is refused |
| size of a tarball that is rebuilt for a delta | {shared/protocol/src/dcz.rs MAX_TAR_BYTES} |  | missing frames are fetched, or the whole tarball |
| smallest body of which only the missing frames are fetched | {agent/src/poll/frames.rs MIN_BODY_BYTES} |  | a smaller one is fetched whole |
| missing frames of a tarball, in bytes | three quarters |  | the whole tarball is fetched |
| ranges of frames of one tarball | {agent/src/fetch/frames.rs MAX_RANGES} |  | the whole tarball is fetched |
| bytes of the names in folders of a release, of those above one file | {agent/release/src/rebuild.rs MAX_NAME_BYTES} |  | the whole tarball is fetched |
| entries of a release for which the file system is synced as a whole | {agent/release/src/file_system_sync.rs MIN_ENTRIES} |  | those of a smaller one are synced one by one |
| time for a sync of the file system | {agent/release/src/file_system_sync.rs LIMIT} |  | each file is synced by itself |
| ranges that are requested at a time | {agent/src/poll/frames.rs RANGES_AT_ONCE} |  | the next ones wait |
| bytes of a range, unless a single frame is larger | {agent/src/fetch/frames.rs MAX_RANGE_BYTES} |  | the next frames are another range |
| rate of a download, in bytes per second | {agent/src/fetch/mod.rs MIN_RATE} |  | it fails |
| time before this rate is needed | {agent/src/fetch/mod.rs SLOW_START} |  |  |
| time for the body of a document: a batch poll, a descriptor, statements | {agent/src/edge_client/response.rs DOCUMENT_TIMEOUT} |  | the request fails |
| wait for the handshake of HTTP/3 | {agent/src/edge_client/edge.rs RACE_DELAY} |  | the request uses HTTP/2; the handshake goes on |
| pause between two polls of a service that events cause | {agent/src/poll/schedule.rs ANNOUNCED_PAUSE} |  | the second one waits |
| pause that an edge may ask for (`Retry-After`) | {agent/src/poll/schedule.rs MAX_RETRY_AFTER} |  | the longest pause |
| the same for what it runs | {agent/src/observed/outbox.rs UNAVAILABLE_PAUSE} |  | the longest pause |
| services that an edge is told of as assigned and not allowed | {agent/src/observed/mod.rs MAX_NOT_ALLOWED} |  | further ones are not told. Metric: `weir_agent_services_not_allowed` |
| time without proof that a release is current (`trust`) | `max_proof_age` | `weir_agent_proof_degraded` | degraded |
| publications that change while one is fetched (`trust`) | {agent/src/poll/poller.rs MAX_RACES} |  | the poll fails |
| output of `exec` or `check` in the log, for each stream and run | {agent/src/hook/output.rs MAX_LOGGED} |  | the rest is dropped |
| pause between attempts of hooks, and of `check` for the same content | {agent/src/hook/retry.rs LONGEST} |  |  |
| changes in the body of a webhook | {agent/release/src/changes.rs MAX_FIRST} |  | the rest is counted in `changes_total` |
"#;

#[test]
fn the_limits_reference_matches_the_code() {
    let mut parts = PAGE.split(['{', '}']);
    let mut page = parts.next().unwrap().to_owned();
    while let (Some(constant), Some(text)) = (parts.next(), parts.next()) {
        let (file, name) = constant.split_once(' ').unwrap();
        let value = constants(file).remove(name);
        page += &value.unwrap_or_else(|| panic!("{file} has no constant {name} with a number or a duration"));
        page += text;
    }
    compare("limits.md", &page);
}
