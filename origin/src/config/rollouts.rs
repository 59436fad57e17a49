//! `[[rollout]]`: the plans of staged rollouts.

use std::collections::BTreeMap;

use weir_protocol::name::RolloutName;
use weir_rollout::Plan;
use weir_source::ServiceConfig;

/// The most plans: of a configuration file, and of operators.
pub(crate) const MAX_ROLLOUTS: usize = 100;

/// Plans by their names.
pub(crate) fn by_name(plans: &[Plan]) -> BTreeMap<RolloutName, Plan> {
    plans.iter().map(|plan| (plan.name().clone(), plan.clone())).collect()
}

/// What is wrong with the plans, and with the services that name them.
pub(super) fn errors(plans: &[Plan], services: &[ServiceConfig]) -> Vec<String> {
    let all = by_name(plans);
    let mut wrong = Vec::new();
    if plans.len() > MAX_ROLLOUTS {
        wrong.push(format!("there are {} rollouts, more than {MAX_ROLLOUTS}", plans.len()));
    }
    for name in all.keys().filter(|name| plans.iter().filter(|plan| plan.name() == *name).count() > 1) {
        wrong.push(format!("two rollouts are called `{name}`: give each [[rollout]] its own name"));
    }
    let named = services.iter().filter_map(|service| Some((&service.name, service.rollout.as_ref()?)));
    let unknown = named.filter(|(_, rollout)| !all.contains_key(*rollout));
    wrong.extend(unknown.map(|(service, rollout)| format!("service `{service}`: there is no [[rollout]] `{rollout}`")));
    wrong
}
