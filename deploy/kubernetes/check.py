"""Checks the manifests and the chart of agents; deploy/helm/try runs it once its tools are there."""
import os
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

HERE = pathlib.Path(__file__).resolve().parent
CHART = HERE.parent / "helm/weir-agent"
PAGE = HERE.parents[1] / "docs/how-to/agents-by-helm.md"
# The oldest and the newest version of Kubernetes whose objects are compared.
KUBERNETES = ["1.30", "1.37"]
# What the standard `restricted` of Kubernetes demands, and a root that is not written to.
CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
VERBS = {"get", "list", "create", "patch", "delete"}
# Values of the chart that must be refused, and what the error names.
REFUSED = [
    (["apply", "--set=name="], "name"),
    (["apply", "--set=name=Cluster 1"], "name"),
    (["apply", "--set=replicas=2"], "replicas"),
    (["apply", "--set=edges={http://edge.example}"], "edges"),
    (["apply", "--set=config.token_file=x"], "token_file"),
    (["apply", "--set=config.poll_intervall=1m"], "poll_intervall"),
    (["apply", "--set=apply.shop.rules[0].verbs={*}"], "verbs"),
    (["sidecar", "--set=apply.shop.services={shop}"], "containers"),
    (["sidecar", "--set=volume.kind=claim"], "containers"),
]
POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def ok(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout


def pods(found):
    """The pods of a workload."""
    spec = found.get("spec", {})
    for step in ["jobTemplate", "spec"] if found["kind"] == "CronJob" else []:
        spec = spec[step]
    if found["kind"] == "Pod":
        yield spec
    if found["kind"] in ["CronJob", "Deployment"]:
        yield spec["template"]["spec"]


def write(folder, files, items):
    """Writes those files of a ConfigMap or a Secret that a volume has."""
    for item in items or [{"key": name, "path": name} for name in files]:
        file = folder / item["path"]
        file.parent.mkdir(exist_ok=True)
        file.write_text(files[item["key"]])
        file.chmod(0o440)


def check_agent(pod, container, config_maps, secrets, folder):
    """Puts the files of a pod where its agent sees them, and lets the agent check its configuration."""
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    etc = folder / "etc"
    etc.mkdir(parents=True)
    for volume in pod["volumes"]:
        if "secret" in volume:
            write(folder, {"token": "a-token-of-this-check\n"}, None)
        for source in volume.get("projected", {}).get("sources", []):
            assert mounts[volume["name"]] == "/etc/weir"
            if "configMap" in source:
                write(etc, config_maps[source["configMap"]["name"]], source["configMap"].get("items"))
            elif "secret" in source:
                write(etc, secrets[source["secret"]["name"]], source["secret"].get("items"))
            else:
                token = source["serviceAccountToken"]
                assert token["audience"] == "weir" and 600 <= token["expirationSeconds"] <= 3600, token
                write(etc, {token["path"]: "a.b.c\n"}, None)
    text = (etc / "agent.toml").read_text().replace('"/var/lib/weir', f'"{folder}/data').replace('"/etc/weir-metrics', f'"{folder}')
    (etc / "agent.toml").unlink()
    (etc / "agent.toml").write_text(text)
    config = tomllib.loads((etc / "agent.toml").read_text())
    assert config["root"] == f"{folder}/data" and "/var/lib/weir" in writable
    if "doctor" in container.get("args", []):
        ok("weir-agent", *container["args"], "--config", etc / "agent.toml", "--help")
        return
    said = ok("weir-agent", "--config", etc / "agent.toml", *container.get("args", []), "--check-config")
    assert said == "configuration ok\n", said
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
        if probe in container:
            port = ports[container[probe]["httpGet"]["port"]]
            assert config["admin_listen"] in (f"[::]:{port}", f"0.0.0.0:{port}"), probe
    for service in config["service"]:
        if isinstance(line := service.get("exec"), str):
            check_exec(line, container, folder / service["name"])
            assert pod["automountServiceAccountToken"], "kubectl has no token"


def check_exec(line, container, folder):
    """Runs a command in a release, with an API server that does not answer: that it asks says that all else is right."""
    folder.mkdir()
    kubeconfig = folder / "kubeconfig"
    context = {"name": "none", "context": {"cluster": "none"}}
    cluster = {"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}
    config = {"kind": "Config", "current-context": "none", "contexts": [context], "clusters": [cluster]}
    kubeconfig.write_text(yaml.safe_dump(config))
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    environment |= {"WEIR_SERVICE": folder.name.replace("*", "prod"), "PATH": os.environ["PATH"], "KUBECACHEDIR": str(folder), "KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "127.0.0.1:1: connect: connection refused" in done.stderr, done.stderr


def check(name, certificates, folder):
    shutil.copytree(HERE / name, folder / "manifests")
    shutil.copy(certificates / "ca.pem", folder / "manifests/ca.pem")
    rendered = folder / "rendered.yaml"
    rendered.write_text(ok("kubectl", "kustomize", folder / "manifests"))
    for version in KUBERNETES:
        objects, agents = check_objects(rendered, version, certificates, folder / version)
    print(f"{name}: {len(objects)} objects, {agents} agents")


def template(values, *options):
    return ["helm", "template", "weir-agent", CHART, "--namespace=weir", f"--values={values}", *options]


def check_chart(values, certificates, folder):
    # As the page says: the authority is a file of its own, and so is the name.
    ca = yaml.safe_load(values.read_text()).get("ca", {"pem": ""})
    authority = [f"--set-file=ca.pem={certificates}/ca.pem"] if "pem" in ca else []
    authority += ["--set=name=cluster-1"] if values.suffix == ".md" else []
    ok("helm", "lint", "--strict", CHART, f"--values={values}", *authority)
    rendered = folder / "rendered.yaml"
    for version in KUBERNETES:
        rendered.write_text(ok(*template(values, f"--kube-version={version}", *authority)))
        objects, agents = check_objects(rendered, version, certificates, folder / version)
        check_rights(objects)
    print(f"weir-agent, {values.name}: {len(objects)} objects, {agents} agents")


def check_rights(objects):
    """The agent may do what kubectl needs, in each namespace where something is applied, and nothing else."""
    kinds = {}
    for found in objects:
        kinds.setdefault(found["kind"], []).append(found)
    (config,) = [found["data"]["agent.toml"] for found in kinds["ConfigMap"] if "agent.toml" in found["data"]]
    commands = [str(service.get("exec")) for service in tomllib.loads(config)["service"]]
    applied = {namespace for command in commands for namespace in re.findall(r"--namespace=(\S+)", command)}
    roles = {role["metadata"]["namespace"]: role["rules"] for role in kinds.get("Role", [])}
    assert roles.keys() == applied, f"{roles.keys()}, not {applied}"
    for rules in roles.values():
        assert rules[0]["resources"] == ["configmaps"] and all(set(rule["verbs"]) == VERBS for rule in rules), rules
    (account,) = kinds["ServiceAccount"]
    for binding in kinds.get("RoleBinding", []):
        names = {key: account["metadata"][key] for key in ["name", "namespace"]}
        assert binding["subjects"] == [{"kind": "ServiceAccount", **names}], binding
    assert "ClusterRole" not in kinds and "ClusterRoleBinding" not in kinds


def check_objects(rendered, version, certificates, folder):
    ok("kubectl", "annotate", "--local", "--filename", rendered, "checked=true", "--output=name")
    objects = [found for found in yaml.safe_load_all(rendered.read_text()) if found]
    authority, certificate, key = [(certificates / name).read_text() for name in ["ca.pem", "agent.pem", "agent.key"]]
    config_maps = {"weir-ca": {"ca.crt": authority}}
    secrets = {"weir-agent-tls": {"tls.crt": certificate, "tls.key": key}, "weir-agent-token": {"token": "a.b.c\n"}}
    for found in objects:
        if not found["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(found, version, strict=True)
        if found["kind"] == "ConfigMap":
            config_maps[found["metadata"]["name"]] = found["data"]
    agents = 0
    for pod in (pod for found in objects for pod in pods(found)):
        assert POD.items() <= pod["securityContext"].items()
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod.get("initContainers", []) + pod["containers"]:
            assert CONTAINER.items() <= container["securityContext"].items(), container["name"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, container["name"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, container["name"]
            if "/weir-agent" in container["image"]:
                agents += 1
                check_agent(pod, container, config_maps, secrets, folder / f"agent-{agents}")
    return objects, agents


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        certificates = folder / "certificates"
        ok("weir", "certificates", "--out", certificates)
        for name in ["apply", "sidecar"]:
            (folder / name).mkdir()
            check(name, certificates, folder / name)
        block = PAGE.read_text().split("   # values.yaml\n")[1].split("```")[0]
        (folder / PAGE.name).write_text(textwrap.dedent(block))
        for values in [folder / PAGE.name, *sorted((CHART / "ci").iterdir())]:
            (folder / values.stem).mkdir()
            check_chart(values, certificates, folder / values.stem)
    for (name, option), named in REFUSED:
        done = subprocess.run(template(CHART / f"ci/{name}-values.yaml", option), capture_output=True, text=True)
        assert done.returncode != 0 and named in done.stderr, f"{name} {option}: {done.stderr}"
    print(f"{len(REFUSED)} mistakes are refused")


if __name__ == "__main__":
    sys.exit(main())
