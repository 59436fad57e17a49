"""What `try-cluster` does, in namespaces of its own: an etcd and a kube-apiserver, and pods as a kubelet runs them.

    unshare --net --mount --pid --fork --mount-proc python cluster.py BINARIES CACHE BEFORE FOLDER

There are no controllers: what they would make (pods, the authority of the API) is made here, and all the rest is asked of the
API server, the volumes of the pods included. BEFORE: the charts from which is upgraded. FOLDER is empty.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "compose"))
from processes import commit, ok, wait_for  # noqa: E402

from pods import API, Pod, create, get, kubectl, out, pod_of, run  # noqa: E402

ISSUER = "https://kubernetes.default.svc.cluster.local"
# What a Kubernetes of 1.20 does not have, and what it has in its place. `check.py` compares all with the schemas of newer ones.
OLDER = [
    (r"kubeVersion: .*", 'kubeVersion: ">=1.20.0-0"'),
    (r"apiVersion: policy/v1\n", "apiVersion: policy/v1beta1\n"),
    (r"apiVersion: autoscaling/v2\n", "apiVersion: autoscaling/v2beta2\n"),
    (r"sleep: \{seconds: .*\}\n", "exec: {command: [sleep]}\n"),
    (r" +persistentVolumeClaimRetentionPolicy:.*\n(    when.*\n)*", ""),
    # Its schema has no default that server-side apply could use.
    (r"\{(name: \S+, (?:port|containerPort): \d+)(?![^\n]*protocol)", r"{protocol: TCP, \1"),
    (r" +(unhealthyPodEvictionPolicy|internalTrafficPolicy|trafficDistribution|loadBalancerClass):.*\n", ""),
]
# An init container that stays, with probes, is of Kubernetes 1.28.
NEWER = ["sidecar-values"]
CUSTOM = [
    ("monitoring.coreos.com", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
    ("cert-manager.io", "Certificate", "certificates"),
    ("gateway.networking.k8s.io", "HTTPRoute", "httproutes"),
    ("gateway.networking.k8s.io", "BackendTLSPolicy", "backendtlspolicies"),
]
# What releases contain in this trial besides ConfigMaps.
RULES = [{"apiGroups": ["apps"], "resources": ["deployments"]}]
VERBS = ["get", "list", "create", "patch", "delete"]


class Cluster:
    def __init__(self, binaries, tools, before, folder):
        self.binaries, self.tools, self.before, self.folder = binaries, tools, before, folder
        self.running = {}

    def spawn(self, name, command, environment=None):
        with (self.folder / f"{name}.log").open("w") as log:
            self.running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def start(self):
        """Admits who has the token, and each service account what its roles say."""
        folder = self.folder
        ok("ip", "link", "set", "lo", "up")
        ok("ip", "address", "add", f"{API}/32", "dev", "lo")
        out("openssl", "genrsa", "-out", folder / "accounts.key", "2048")
        out("openssl", "rsa", "-in", folder / "accounts.key", "-pubout", "-out", folder / "accounts.pub")
        (folder / "tokens").write_text("a-token-of-this-trial,admin,admin,system:masters\n")
        self.spawn("etcd", ["etcd", f"--data-dir={folder}/etcd"])
        flags = {
            "etcd-servers": "http://127.0.0.1:2379",
            "bind-address": API,
            "secure-port": 443,
            "advertise-address": API,
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": "10.96.0.0/16",
            "cert-dir": folder / "api",
            "authorization-mode": "RBAC",
            "token-auth-file": folder / "tokens",
            "service-account-issuer": ISSUER,
            "service-account-signing-key-file": folder / "accounts.key",
            "service-account-key-file": folder / "accounts.pub",
            "feature-gates": "BoundServiceAccountTokenVolume=true,GenericEphemeralVolume=true,MixedProtocolLBService=true",
        }
        self.spawn("kube-apiserver", ["kube-apiserver", *[f"--{flag}={value}" for flag, value in flags.items()]])
        cluster = {"server": f"https://{API}", "certificate-authority": str(folder / "api/apiserver.crt")}
        config = {
            "clusters": [{"name": "trial", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": "a-token-of-this-trial"}}],
            "contexts": [{"name": "trial", "context": {"cluster": "trial", "user": "admin"}}],
            "current-context": "trial",
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        os.environ |= {"KUBECONFIG": str(folder / "kubeconfig"), "HOME": str(folder)}
        wait_for("the API server is ready", lambda: run("kubectl", "get", "--raw=/readyz")[1] == "ok")
        for kind in CUSTOM:
            create(custom(*kind))
        create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000})
        for name in ["shop", "monitoring", "weir"]:
            self.namespace(name)
        for group, _, plural in CUSTOM:
            wait_for(f"{plural} are known", lambda: run("kubectl", "get", f"{plural}.{group}")[0] == 0)

    def namespace(self, name):
        """A namespace with what controllers give to each: a service account, and the authority of the API."""
        kubectl("create", "namespace", name)
        kubectl("create", "serviceaccount", "default", f"--namespace={name}")
        kubectl("create", "configmap", "kube-root-ca.crt", f"--namespace={name}", f"--from-file=ca.crt={self.folder}/api/apiserver.crt")

    def chart(self, folder):
        """A copy of a chart for the Kubernetes of this trial."""
        copy = self.folder / f"charts/{len(list(self.folder.glob('charts/*')))}" / folder.name
        shutil.copytree(folder, copy)
        for file in [copy / "Chart.yaml", *(copy / "templates").iterdir()]:
            text = file.read_text()
            for pattern, replacement in OLDER:
                text = re.sub(pattern, replacement, text)
            file.write_text(text)
        return copy


def custom(group, kind, plural):
    """A kind that others define, with any content."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, for a trial"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def accept(cluster):
    """Each chart with each file of its ci/: installed as before, upgraded, rolled back, upgraded again."""
    for name in ["weir-hub", "weir-agent"]:
        charts = {folder: cluster.chart(folder / name) for folder in [cluster.before, HERE] if (folder / name).exists()}
        for values in sorted((HERE / name / "ci").iterdir()):
            if values.stem in NEWER:
                continue
            release = [name, f"--namespace={name}-{values.stem}"]
            cluster.namespace(f"{name}-{values.stem}")
            old = cluster.before / name / "ci" / values.name
            if old.exists():
                out("helm", "install", *release, charts[cluster.before], f"--values={old}")
            out("helm", "upgrade", "--install", *release, charts[HERE], f"--values={values}")
            if old.exists():
                out("helm", "rollback", *release)
                out("helm", "upgrade", *release, charts[HERE], f"--values={values}")
            objects = [found for found in yaml.safe_load_all(out("helm", "get", "manifest", *release)) if found]
            policies = check_policies(objects)
            pods = [yaml.safe_load(out("helm", "get", "hooks", *release)), *[pod_of(found) for found in objects if "template" in found.get("spec", {})]]
            for pod in pods:
                create(pod, "--dry-run=server", release[1])
            out("helm", "uninstall", *release)
            how = "upgraded, rolled back" if old.exists() else "installed"
            print(f"{name}, {values.name}: {how}, {len(objects)} objects, {len(pods)} pods, {policies} policies", flush=True)


def check_policies(objects):
    """NetworkPolicies say what the chart meant, as the API server read them."""
    policies = [found for found in objects if found["kind"] == "NetworkPolicy"]
    for policy in policies:
        found = get("networkpolicy", policy["metadata"]["name"], policy["metadata"]["namespace"])["spec"]
        assert found == policy["spec"], f"{found}, not {policy['spec']}"
    return len(policies)


def secrets(cluster):
    """What the charts expect to be there."""
    names = ["weir-hub-origin.weir.svc", "weir-hub-edge.weir.svc", "edge.example"]
    made = cluster.folder / "certificates"
    out(cluster.binaries / "weir", "certificates", "--out", made, "--host", *names)
    for secret, name in [("weir-origin-tls", "origin"), ("weir-edge-tls", "edge"), ("weir-edge-client", "edge-client")]:
        files = {"tls.crt": f"{name}.pem", "tls.key": f"{name}.key", "ca.crt": "ca.pem"}
        kubectl("create", "secret", "generic", secret, "--namespace=weir", *[f"--from-file={key}={made / file}" for key, file in files.items()])
    # docs/how-to/identities-of-clusters.md
    assert json.loads(kubectl("get", "--raw=/.well-known/openid-configuration"))["issuer"] == ISSUER
    (cluster.folder / "jwks.json").write_text(kubectl("get", "--raw=/openid/v1/jwks"))
    kubectl("create", "secret", "generic", "weir-cluster-1", "--namespace=weir", f"--from-file={cluster.folder}/jwks.json")
    return made


def hub(cluster, repositories):
    """Values of a hub: one origin and one edge, which lets this Kubernetes cluster in."""
    issuer = {"issuer": ISSUER, "audience": "weir", "jwks": "secrets/cluster/jwks.json", "agent": "cluster-1", "services": ["*"]}
    issuer["subjects"] = ["system:serviceaccount:weir:weir-agent"]
    upstream = {"name": "upstream", "hostPath": {"path": str(cluster.folder / "upstream")}}
    config = {
        "repository": [{"name": name, "url": f"/upstream/{name}", "poll_interval": "2s"} for name in repositories],
        "service": [{"name": name, "repository": name} for name in repositories],
    }
    return {
        "origin": {
            "image": "weir-origin",
            "replicas": 1,
            "certificate": "weir-origin-tls",
            "config": config,
            "extraVolumes": [upstream],
            "extraVolumeMounts": [{"name": "upstream", "mountPath": "/upstream", "readOnly": True}],
        },
        "edge": {
            "image": "weir-edge",
            "replicas": 1,
            "hosts": ["edge.example"],
            "certificate": "weir-edge-tls",
            "clientCertificate": "weir-edge-client",
            "secrets": {"cluster": "weir-cluster-1"},
            "config": {"auth": {"mode": "required", "issuer": [issuer]}},
        },
    }


def agent(made):
    return {
        "name": "cluster-1",
        "image": "weir-agent",
        "edges": ["https://edge.example:7443"],
        "ca": {"pem": (made / "ca.pem").read_text()},
        "config": {"poll_interval": "2s"},
        "apply": {"shop": {"services": ["shop", "more"], "rules": RULES}},
    }


def upgrade(cluster, name, values):
    file = cluster.folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(values))
    out("helm", "upgrade", "--install", name, cluster.chart(HERE / name), "--namespace=weir", f"--values={file}")


def release(cluster, repository, *objects):
    """Commits these objects, and nothing else."""
    folder = cluster.folder / "upstream" / repository
    if not folder.exists():
        ok("git", "init", "--quiet", "-b", "main", folder)
    for old in folder.glob("*.yaml"):
        old.unlink()
    for found in objects:
        (folder / f"{found['metadata']['name']}.yaml").write_text(yaml.safe_dump(found))
    commit(folder, str(time.time_ns()))


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def exists(kind, name, namespace="shop"):
    return run("kubectl", "get", kind, name, f"--namespace={namespace}")[0] == 0


def applied(name):
    """The data of a ConfigMap in the namespace `shop`."""
    return get("configmap", name, "shop")["data"] if exists("configmap", name) else None


def allowed(account, namespace):
    """What RBAC lets a service account do in a namespace, besides what any may."""
    review = json.dumps({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}})

    def rules(name):
        groups = ["system:serviceaccounts", "system:serviceaccounts:weir", "system:authenticated"]
        impersonated = [f"--as=system:serviceaccount:weir:{name}", *[f"--as-group={group}" for group in groups]]
        found = json.loads(kubectl("create", "--filename=-", "--output=json", *impersonated, given=review))["status"]
        assert not found["incomplete"], found
        return found["resourceRules"]

    everybody = rules("nobody")
    return [rule for rule in rules(account) if rule not in everybody]


def check_rights():
    """The agent may change what its values list, in that namespace, and nothing else anywhere."""
    wanted = [{"verbs": VERBS, **rule} for rule in [{"apiGroups": [""], "resources": ["configmaps"]}, *RULES]]
    found = allowed("weir-agent", "shop")
    assert found == wanted, f"{found}, not {wanted}"
    for namespace in ["weir", "monitoring", "default", "kube-system"]:
        assert allowed("weir-agent", namespace) == [], namespace


def check_tokens(pod, made):
    """The edge takes the token of the agent's pod, and no other one of this Kubernetes cluster."""
    for account in ["weir-agent", "weir-hub-edge"]:
        for audience in ["weir", None]:
            token = pod.token(audience, 600) if account == "weir-agent" else kubectl("create", "token", account, "--namespace=weir", "--audience=weir").strip()
            options = ["--cacert", made / "ca.pem", "--connect-to", "::127.0.0.1:7443", "--header", f"Authorization: Bearer {token}"]
            status = out("curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *options, "https://edge.example/v1/services/shop")
            is_right = account == "weir-agent" and audience == "weir"
            assert (status == "200") == is_right and status in ("200", "401", "403"), f"{account}, {audience}: {status}"


def follow(cluster):
    """Commits reach this Kubernetes cluster through the pods of both charts, with the rights of the chart."""
    made = secrets(cluster)
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app"}}
    container = {"name": "app", "image": "app"}
    deployment["spec"] = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}}
    release(cluster, "shop", config_map("first", version="1"), config_map("second", version="1"), deployment)
    upgrade(cluster, "weir-hub", hub(cluster, ["shop"]))
    upgrade(cluster, "weir-agent", agent(made))
    check_rights()
    print("the agent may change what its values list, and no more", flush=True)
    pods = [Pod(cluster, "statefulset", "weir-hub-origin"), Pod(cluster, "statefulset", "weir-hub-edge"), Pod(cluster, "deployment", "weir-agent")]
    origin, edge, follower = pods
    for pod in pods[:2]:
        pod.start()
    cluster.spawn(follower.name, follower.command(follower.program()), follower.environment())
    wait_for("the first release is applied", lambda: applied("first") == {"version": "1"} and exists("deployment", "app"))
    check_tokens(follower, made)
    print("the edge takes the token of the agent's pod, and no other one", flush=True)

    release(cluster, "shop", config_map("first", version="2"))
    wait_for("the second release is applied", lambda: applied("first") == {"version": "2"})
    wait_for("what has left the release has left the cluster", lambda: not exists("configmap", "second") and not exists("deployment", "app"))
    print("releases are applied, and what leaves them is pruned", flush=True)

    # What the Role does not list, and what is of another namespace.
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "forbidden"}}
    elsewhere = {**config_map("elsewhere"), "metadata": {"name": "elsewhere", "namespace": "default"}}
    for refused in [secret, elsewhere]:
        release(cluster, "shop", config_map("first", version="2"), refused)
        hook = wait_for("the hook fails", lambda: (hook := follower.status()["services"]["shop"]["hook"])["state"] == "failed" and hook)
        assert not exists(refused["kind"], refused["metadata"]["name"], refused["metadata"].get("namespace", "shop"))
        print(f"refused: {hook['stderr']}", flush=True)
        release(cluster, "shop", config_map("first", version=refused["kind"]))
        if refused is secret:
            # docs/how-to/kubernetes-agent.md: kubectl goes on looking for a kind that it was not allowed to apply.
            wait_for("it is not forgotten", lambda: "for pruning" in str(follower.status()["services"]["shop"]["hook"]["stderr"]))
            kubectl("annotate", "--namespace=shop", "--overwrite", "configmap", "weir-shop", "applyset.kubernetes.io/contains-group-kinds=ConfigMap")
        wait_for("the hook succeeds", lambda: applied("first") == {"version": refused["kind"]} and follower.status()["services"]["shop"]["hook"]["state"] == "succeeded")

    # docs/how-to/cluster-behind.md: the generation at each hop.
    at_origin = next(it for it in origin.status()["services"] if it["name"] == "shop")["published"]["generation"]
    at_edge = next(it for it in edge.status()["services"] if it["service"] == "shop")["generation"]
    at_agent = follower.status()["services"]["shop"]["release"]["generation"]
    assert at_origin == at_edge == at_agent, (at_origin, at_edge, at_agent)
    print("`status` in each pod has the same generation", flush=True)
    check_no_restart(cluster, pods)


def check_no_restart(cluster, pods):
    """Another repository and service in the values: no workload is changed, and its first commit is applied."""
    kinds = ["statefulset", "statefulset", "deployment"]
    names = [pod.name.removesuffix("-0") for pod in pods]
    before = [get(kind, name)["metadata"]["generation"] for kind, name in zip(kinds, names)]
    release(cluster, "more", config_map("third", version="1"))
    upgrade(cluster, "weir-hub", hub(cluster, ["shop", "more"]))
    assert [get(kind, name)["metadata"]["generation"] for kind, name in zip(kinds, names)] == before
    began = time.monotonic()
    for pod in pods:
        pod.refresh()
    wait_for("the new service is applied", lambda: applied("third") == {"version": "1"})
    print(f"a new repository restarts no pod, and is applied {time.monotonic() - began:.0f} s after its file was there", flush=True)


def main(binaries, cache, before, folder):
    binaries, cache, before, folder = [pathlib.Path(path).resolve() for path in (binaries, cache, before, folder)]
    cluster = Cluster(binaries, cache / "tools", before, folder)
    try:
        cluster.start()
        accept(cluster)
        follow(cluster)
    except BaseException:
        for name in cluster.running:
            print(f"== {name}\n{cluster.log(name)[-2000:]}", file=sys.stderr)
        raise
    finally:
        for process in cluster.running.values():
            process.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
