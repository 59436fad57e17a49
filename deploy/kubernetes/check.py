"""Checks the manifests of agents; deploy/helm/try runs it once its tools are there."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).parent
# The oldest and the newest version of Kubernetes whose objects are compared.
KUBERNETES = ["1.30", "1.37"]
# What the standard `restricted` of Kubernetes demands, and a root that is not written to.
CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
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
    if found["kind"] in ["CronJob", "Deployment"]:
        yield spec["template"]["spec"]


def check_agent(pod, container, config_maps, folder):
    """Puts the files of a pod where its agent sees them, and lets the agent check its configuration."""
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    etc = folder / "etc"
    etc.mkdir(parents=True)
    for volume in pod["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            assert mounts[volume["name"]] == "/etc/weir"
            if "configMap" in source:
                for name, text in config_maps[source["configMap"]["name"]].items():
                    (etc / name).write_text(text.replace('"/var/lib/weir', f'"{folder}/data'))
            else:
                token = source["serviceAccountToken"]
                assert token["audience"] == "weir" and 600 <= token["expirationSeconds"] <= 3600, token
                (etc / token["path"]).write_text("a.b.c\n")
    config = tomllib.loads((etc / "agent.toml").read_text())
    assert config["root"] == f"{folder}/data" and "/var/lib/weir" in writable
    said = ok("weir-agent", "--config", etc / "agent.toml", *container.get("args", []), "--check-config")
    assert said == "configuration ok\n", said
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
        if probe in container:
            port = ports[container[probe]["httpGet"]["port"]]
            assert config["admin_listen"] == f"[::]:{port}", probe
    for service in config["service"]:
        if line := service.get("exec"):
            check_exec(line, container, folder / service["name"])


def check_exec(line, container, folder):
    """Runs a command in a release, with an API server that does not answer: that it asks says that all else is right."""
    folder.mkdir()
    kubeconfig = folder / "kubeconfig"
    context = {"name": "none", "context": {"cluster": "none"}}
    cluster = {"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}
    config = {"kind": "Config", "current-context": "none", "contexts": [context], "clusters": [cluster]}
    kubeconfig.write_text(yaml.safe_dump(config))
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    environment |= {"PATH": os.environ["PATH"], "KUBECACHEDIR": str(folder), "KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "127.0.0.1:1: connect: connection refused" in done.stderr, done.stderr


def check(name, authority, folder):
    shutil.copytree(HERE / name, folder / "manifests")
    shutil.copy(authority, folder / "manifests/ca.pem")
    rendered = folder / "rendered.yaml"
    rendered.write_text(ok("kubectl", "kustomize", folder / "manifests"))
    ok("kubectl", "annotate", "--local", "--filename", rendered, "checked=true", "--output=name")
    objects = list(yaml.safe_load_all(rendered.read_text()))
    config_maps = {}
    for found in objects:
        for version in KUBERNETES:
            kubernetes_validate.validate(found, version, strict=True)
        if found["kind"] == "ConfigMap":
            config_maps[found["metadata"]["name"]] = found["data"]
    agents = []
    for pod in (pod for found in objects for pod in pods(found)):
        assert POD.items() <= pod["securityContext"].items()
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod.get("initContainers", []) + pod["containers"]:
            assert CONTAINER.items() <= container["securityContext"].items(), container["name"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, container["name"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, container["name"]
            if "/weir-agent" in container["image"]:
                agents.append(container["name"])
                check_agent(pod, container, config_maps, folder / f"agent-{len(agents)}")
    print(f"{name}: {len(objects)} objects, {len(agents)} agents")


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        ok("weir", "certificates", "--out", folder / "certificates")
        for name in ["apply", "sidecar"]:
            (folder / name).mkdir()
            check(name, folder / "certificates/ca.pem", folder / name)


if __name__ == "__main__":
    sys.exit(main())
