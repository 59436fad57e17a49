"""What `try` checks once its tools are there."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib

import kubernetes_validate
import yaml

import rules

CHART = pathlib.Path(__file__).parent / "weir-hub"
PAGE = CHART.parents[2] / "docs/how-to/kubernetes.md"
# The oldest and the newest version of Kubernetes whose objects are compared.
KUBERNETES = ["1.30", "1.37"]
# Values that must be refused, and what the error names.
REFUSED = [
    (["one-origin", "--set=origin.replicas=2"], "origin.config.cluster"),
    (["one-origin", "--set=origin.volume.kind=emptyDir"], "origin.volume.kind"),
    (["bucket", "--set=origin.replcas=2"], "replcas"),
    (["bucket", "--set=origin.config.limits.concurent_fetches=2"], "concurent_fetches"),
    (["bucket", "--set=origin.config.name=x"], "name"),
    (["bucket", "--set=origin.config.cluster.engine=zookeeper"], "engine"),
    (["bucket", "--set=origin.certificate="], "certificate"),
    (["edges-only", "--set=edge.kind=Hub"], "edge.kind"),
    (["edges-only", "--set-json=edge.config.origin=[]"], "edge.config.origin"),
    (["edges-only", "--set=edge.volume.kind=hostPath"], "edge.volume.kind"),
    (["edges-only", "--set=monitoring.podMonitors=true"], "edge.hosts"),
    (["bucket", "--set=origin.operators.enabled=false"], "origin.operators.enabled"),
    (["bucket", "--set=origin.webhooks.gateway.authority="], "origin.webhooks.gateway.authority"),
    (["bucket", "--set=origin.config.webhook_listen=0.0.0.0:1"], "webhook_listen"),
    (["hub", "--set-json=networkPolicy.edgeEgress=[{}]"], "networkPolicy.edgeEgress"),
    (["etcd", "--set=edge.volume.kind=claim"], "edge.volume.kind"),
    (["etcd", "--set=edge.autoscaling.enabled=true"], "edge.autoscaling"),
    (["etcd", "--set=edge.updateStrategy.rollingUpdate.maxSurge=1"], "maxSurge"),
    (["every-key", "--set=origin.config.agent[0].labels=canary"], "labels"),
    (["every-key", "--set-json=origin.config.service[3].parts[1]={\"to\": \"a\"}"], "parts"),
    (["every-key", "--set-json=origin.config.service[3].parts[1]={\"to\": \"a\", \"repository\": \"b\", \"service\": \"c\"}"], "parts"),
]
# Values that helm accepts and the program refuses, and what the error names: the gate sees it, and no pod crashes.
REFUSED_BY_PROGRAM = [
    (["every-key", "--set=origin.config.service[3].parts[1].repository=settings"], "different owners in a cluster"),
]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stdout + done.stderr


def ok(*command):
    status, output, everything = run(*command)
    assert status == 0, f"{' '.join(map(str, command))}:\n{everything}"
    return output


def values_of(name):
    return CHART / "ci" / f"{name}-values.yaml"


def template(values, *options):
    return ["helm", "template", "weir", CHART, "--namespace=weir", f"--values={values}", *options]


def secrets(folder):
    """Secrets as the files of ci/ name them: name → key → file."""
    ok("weir", "certificates", "--out", folder)
    ok("weir", "token", "key", "--out", folder / "fleet.key")
    ok("weir-origin", "keys", "new", folder / "signing.key")
    text = folder / "text"
    text.write_text("a-secret-of-this-check\n")
    deny = folder / "deny"
    deny.write_text("agent cluster-9\n")
    ok("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", folder / "cosign.key")
    ok("openssl", "ec", "-in", folder / "cosign.key", "-pubout", "-out", folder / "cosign.pub")

    def certificate(name):
        return {"tls.crt": folder / f"{name}.pem", "tls.key": folder / f"{name}.key", "ca.crt": folder / "ca.pem"}

    git = ["password", "ssh-key", "known-hosts", "allowed-signers"]
    return {
        "weir-origin-tls": certificate("origin"),
        "weir-edge-tls": certificate("edge"),
        "weir-edge-client": certificate("edge-client"),
        "weir-etcd": certificate("edge-client"),
        "weir-access": {"deny": deny, "cosign.pub": folder / "cosign.pub", "keyring.gpg": text},
        "weir-signing": {"signing.key": folder / "signing.key"},
        "weir-tokens": {"fleet.key.pub": folder / "fleet.key.pub"},
        "weir-bucket": {"id": text, "secret": text},
        "weir-operator": {"token": text},
        "weir-webhooks": {"shop": text},
        "git-example": {key: text for key in git},
    }


def check_config(role, config, base="", refused=None):
    status, _, output = run("env", f"WEIR_BASE_DIR={base}", f"weir-{role}", "--config", config, "--check-config")
    if refused and role == "origin":
        assert status == 2 and refused in output, f"{refused} is not refused: {output}"
        return
    # The bucket or etcd does not answer here, which is said too; and some values have one token for all operators.
    also = ("the operators' definitions were not checked", "`operator_token_file`: everybody with this token is still an admin")
    said = [line for line in output.splitlines() if not any(text in line for text in also)]
    assert (status, said) == (0, ["configuration ok"]), f"{config}:\n{output}\n{config.read_text()}"


def check_pod(workload, config_maps, secrets, folder, refused=None):
    """Puts the files of a pod where its container sees them, and lets the program check its configuration."""
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    rules.security(workload["metadata"]["name"], spec)
    data = folder / "data"
    listening = []
    for mount in container["volumeMounts"]:
        name = mount["name"]
        assert name in volumes or name in claims, f"{name}: there is no such volume"
        path = folder / mount["mountPath"].lstrip("/")
        if secret := volumes.get(name, {}).get("secret"):
            path.mkdir(parents=True)
            for key, file in secrets[secret["secretName"]].items():
                shutil.copy(file, path / key)
                (path / key).chmod(secret["defaultMode"])
        elif (config_map := volumes.get(name, {}).get("configMap")) and config_map["name"] in config_maps:
            assert "subPath" not in mount, f"{name}: such a mount is never updated"
            path.mkdir(parents=True)
            ((file, text),) = config_maps[config_map["name"]].items()
            (path / file).write_text(text.replace('"/var/lib/weir', f'"{data}'))
            listening += rules.listens(tomllib.loads(text))
            assert tomllib.loads(text)["watch_config"] is True, f"{file}: a change would wait for a restart"
            if file == "edge.toml":
                rules.bounds_of_memory(workload["metadata"]["name"], tomllib.loads(text), container)
    assert sorted(listening) == sorted(rules.listeners_of(workload)), f"{workload['metadata']['name']}: {listening}"
    ports = {port["name"] for port in container["ports"]}
    for probe in ["livenessProbe", "readinessProbe"]:
        assert container[probe]["httpGet"]["port"] in ports, probe
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    names = [it["valueFrom"]["fieldRef"]["fieldPath"] for it in container["env"] if it["name"] == "WEIR_EDGE_NAME"]
    stable = "spec.nodeName" if workload["kind"] == "DaemonSet" else "metadata.name"
    assert names == ([stable] if "edge-admin" in ports else []), f"{workload['kind']}: {names}"
    roles = {"WEIR_CONFIG": container["name"], "WEIR_ORIGIN_CONFIG": "origin", "WEIR_EDGE_CONFIG": "edge"}
    for variable in roles.keys() & environment.keys():
        data.mkdir(exist_ok=True)
        base = environment.get("WEIR_BASE_DIR", "")
        check_config(roles[variable], folder / environment[variable].lstrip("/"), base, refused)
    return ports


def objects_of(values, version, file, *options):
    file.write_text(ok(*template(values, f"--kube-version={version}", *options)))
    ok("kubectl", "annotate", "--local", "--filename", file, "checked=true", "--output=name")
    objects = [found for found in yaml.safe_load_all(file.read_text()) if found]
    for found in objects:
        if found["apiVersion"].split("/")[0] not in rules.CUSTOM:
            kubernetes_validate.validate(found, version, strict=True)
    return objects


def check(values, secrets, folder):
    ok("helm", "lint", "--strict", CHART, f"--values={values}")
    for version in KUBERNETES:
        objects = objects_of(values, version, folder / "rendered.yaml")
        check_objects(values.stem, version, objects, secrets, folder / version)
    check_notes(values, objects)
    print(f"{values.name}: {len(objects)} objects")


def check_notes(values, objects):
    """The notes of the installation print the names of the origins' certificate."""
    notes = ok("helm", "install", *template(values)[2:], "--dry-run=client").split("\nNOTES:\n")[1]
    for found in objects:
        if found["kind"] == "Service" and found["spec"]["ports"][0]["targetPort"] != "agents":
            assert f"{found['metadata']['name']}.weir.svc" in notes.split(), f"{values.name}: {notes}"


def check_objects(name, version, objects, secrets, folder):
    kinds = {}
    for found in objects:
        kinds.setdefault(found["kind"], []).append(found)
    config_maps = {found["metadata"]["name"]: found["data"] for found in kinds["ConfigMap"]}
    workloads = [found for kind in ["StatefulSet", "DaemonSet"] for found in kinds.get(kind, [])]
    pods = []
    for workload in workloads:
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ports = check_pod(workload, config_maps, secrets, folder / workload["metadata"]["name"])
        pods.append((workload, labels, ports))
        if "edge-admin" in ports:
            assert rules.cache(workload) == (name != "one-origin-values"), f"{name}: the cache of an edge"
    for service in kinds["Service"]:
        selected = rules.selected_by(service["spec"]["selector"], pods)
        assert len(selected) == 1, service["metadata"]["name"]
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        assert targets <= selected[0][2], f"{service['metadata']['name']}: {targets}"
        if selected[0][0]["kind"] == "DaemonSet":
            # Its pods prefer the edge of their node, and reach another one while that is replaced.
            kind = {"1.30": "PreferClose", "1.37": "PreferSameNode"}[version]
            keys = ["internalTrafficPolicy", "trafficDistribution", "sessionAffinity"]
            assert [service["spec"][key] for key in keys] == ["Cluster", kind, "None"], service["spec"]
    for scaler in kinds.get("HorizontalPodAutoscaler", []):
        (scaled,) = [found for found in workloads if found["metadata"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]]
        assert scaled["kind"] == "StatefulSet" and "replicas" not in scaled["spec"], scaler["metadata"]["name"]
    rules.certificates(kinds, pods)
    rules.network_policies(kinds.get("NetworkPolicy", []), pods)
    rules.routes(kinds)
    rules.test(kinds)
    for monitor in kinds.get("PodMonitor", []):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ((_, _, ports),) = rules.selected_by(monitor["spec"]["selector"]["matchLabels"], pods)
        assert endpoint["port"] in ports, monitor
        assert (endpoint.get("scheme") == "https") == (endpoint.get("tlsConfig", {}).get("serverName") == "edge.hub.example"), monitor
    for dashboard in kinds["ConfigMap"]:
        for file, text in dashboard["data"].items():
            assert not file.endswith(".json") or json.loads(text)["uid"] == file.removesuffix(".json"), file
    for rule in kinds.get("PrometheusRule", []):
        file = folder / f"{rule['metadata']['name']}.yml"
        file.write_text(yaml.safe_dump(rule["spec"]))
        ok("promtool", "check", "rules", "--lint=none", file)


def keys_of(schema, definitions, path=""):
    """The keys of a table, and of the tables below it."""
    for key, below in schema.get("items", schema).get("properties", {}).items():
        below = definitions[below["$ref"].rsplit("/", 1)[1]] if "$ref" in below else below
        yield f"{path}{key}"
        yield from keys_of(below, definitions, f"{path}{key}.")


def keys_in(values, path=""):
    for table in values if isinstance(values, list) else [values]:
        for key, value in table.items() if isinstance(table, dict) else []:
            yield f"{path}{key}"
            yield from keys_in(value, f"{path}{key}.")


def check_every_key(chart):
    """Each value of a chart, and each key of the reference, is in a file of ci/, so that its type is tried."""
    schema = json.loads((chart / "values.schema.json").read_text())
    files = [yaml.safe_load(file.read_text()) for file in sorted((chart / "ci").iterdir())]
    tried = {key for values in files for key in keys_in(values)} | {"global"}
    missing = [key for key in keys_of(schema, schema["$defs"]) if key not in tried]
    assert not missing, f"no file of {chart}/ci has these values: {' '.join(missing)}"


def check_refused_by_program(name, option, named, secrets, folder):
    objects = [found for found in yaml.safe_load_all(ok(*template(values_of(name), option))) if found]
    config_maps = {found["metadata"]["name"]: found["data"] for found in objects if found["kind"] == "ConfigMap"}
    (origin,) = [found for found in objects if found["kind"] == "StatefulSet" and found["metadata"]["name"].endswith("-origin")]
    check_pod(origin, config_maps, secrets, folder, named)


def check_restarts():
    """What processes read again by themselves replaces no pod, and what they do not read replaces those that need it."""
    for name, of in [("hub", {"origin"}), ("etcd", {"origin", "edge"})]:

        def pods(*options):
            found = [it for it in yaml.safe_load_all(ok(*template(values_of(name), *options))) if it]
            workloads = [it for it in found if it["kind"] in ("StatefulSet", "DaemonSet")]
            return {it["metadata"]["name"].rsplit("-", 1)[1]: it["spec"]["template"] for it in workloads}

        before = pods()
        assert before.keys() == of, before.keys()
        assert pods('--set-json=origin.config.agent=[{"name":"new"}]', '--set-json=edge.config.auth.keys=["new"]') == before
        changed = pods("--set=origin.config.generation_floor=1")
        assert {of for of in before if changed[of] != before[of]} == {"origin"}


def main():
    check_restarts()
    for chart in [CHART.parent / "weir-agent", CHART]:
        check_every_key(chart)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "secrets").mkdir()
        found = secrets(folder / "secrets")
        # Those of the documentation too.
        block = PAGE.read_text().split("   # values.yaml\n")[1].split("```")[0]
        (folder / "kubernetes.md").write_text(textwrap.dedent(block))
        for values in [folder / "kubernetes.md", *sorted((CHART / "ci").iterdir())]:
            (folder / values.stem).mkdir()
            check(values, found, folder / values.stem)
        for number, ((name, option), named) in enumerate(REFUSED_BY_PROGRAM):
            check_refused_by_program(name, option, named, found, folder / f"refused-{number}")
    for (name, option), named in REFUSED:
        status, _, output = run(*template(values_of(name), option))
        assert status != 0 and named in output, f"{name} {option}: {output}"
    print(f"{len(REFUSED) + len(REFUSED_BY_PROGRAM)} mistakes are refused")


if __name__ == "__main__":
    sys.exit(main())
