"""Pods as a kubelet runs them, but without a container runtime: a process with the volumes, the root, the user and the environment
that the API server answers."""
import base64
import json
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "compose"))
from processes import bind, wait_for  # noqa: E402

API = "10.96.0.1"
USER = 65532


def run(*command, given=""):
    done = subprocess.run([str(part) for part in command], input=given, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stdout + done.stderr


def out(*command, given=""):
    status, output, everything = run(*command, given=given)
    assert status == 0, f"{' '.join(map(str, command))}:\n{everything}"
    return output


def kubectl(*arguments, given=""):
    return out("kubectl", *arguments, given=given)


def create(found, *options):
    return json.loads(kubectl("create", "--filename=-", "--output=json", *options, given=json.dumps(found)))


def get(kind, name, namespace="weir"):
    return json.loads(kubectl("get", kind, name, f"--namespace={namespace}", "--output=json"))


def pod_of(workload):
    """The pod that a controller makes of a workload."""
    template = workload["spec"]["template"]
    spec = template["spec"]
    name = f"{workload['metadata']['name']}-0"
    for claim in workload["spec"].get("volumeClaimTemplates", []):
        of = claim["metadata"]["name"]
        spec["volumes"].append({"name": of, "persistentVolumeClaim": {"claimName": f"{of}-{name}"}})
    metadata = {**template["metadata"], "name": name, "namespace": workload["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Pod:
    """A pod whose one container is a process, with the volumes that the API server answers, and its root, user and environment."""

    def __init__(self, cluster, kind, name):
        self.cluster = cluster
        self.object = create(pod_of(get(kind, name)))
        self.name = self.object["metadata"]["name"]
        (self.container,) = self.object["spec"]["containers"]
        self.folder = cluster.folder / self.name
        self.root = self.folder / "root"
        self.written = {volume["name"]: self.folder / volume["name"] for volume in self.object["spec"]["volumes"]}
        self.refresh()
        for path in ["/usr", "/etc/ssl", "/dev", "/proc"]:
            bind(pathlib.Path(path), self.root / path[1:], read_only=path in ["/usr", "/etc/ssl"])
        for path, folder in [("opt/weir", cluster.binaries), ("opt/kubernetes", cluster.tools)]:
            bind(folder, self.root / path, read_only=True)
        for path in ["bin", "sbin", "lib", "lib64"]:
            (self.root / path).symlink_to(f"usr/{path}")
        (self.root / "etc/passwd").write_text(f"weir:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin\n")
        hosts = ["localhost", "edge.example", *[f"weir-hub-{of}.weir.svc" for of in ["origin", "edge"]]]
        (self.root / "etc/hosts").write_text(f"127.0.0.1 {' '.join(hosts)}\n")
        for mount in self.container["volumeMounts"]:
            bind(self.written[mount["name"]], self.root / mount["mountPath"][1:], mount.get("readOnly", False))

    def refresh(self):
        """Writes its volumes, as a kubelet does again every minute or so."""
        for volume in self.object["spec"]["volumes"]:
            folder = self.written[volume["name"]]
            if "hostPath" in volume:
                self.written[volume["name"]] = pathlib.Path(volume["hostPath"]["path"])
                continue
            folder.mkdir(parents=True, exist_ok=True)
            sources = volume.get("projected", {}).get("sources", [volume])
            files = [file for source in sources for file in self.files(source)]
            if not files:
                shutil.chown(folder, group=USER)
                folder.chmod(0o2777)
                continue
            new = folder / f"..{time.time_ns()}"
            for path, content in files:
                file = new / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                shutil.chown(file, group=USER)
                file.chmod(0o440)
                if not (link := folder / path.split("/")[0]).is_symlink():
                    link.symlink_to(f"..data/{link.name}")
            (folder / "..new").symlink_to(new.name)
            (folder / "..new").rename(folder / "..data")

    def files(self, source):
        """The files of a volume, or of a part of a projected one. None: it is a folder to write to."""
        if of := source.get("configMap"):
            data = {key: text.encode() for key, text in get("configmap", of["name"])["data"].items()}
        elif of := source.get("secret"):
            found = get("secret", of.get("secretName") or of["name"])["data"]
            data = {key: base64.b64decode(text) for key, text in found.items()}
        elif of := source.get("serviceAccountToken"):
            return [(of["path"], self.token(of.get("audience"), of["expirationSeconds"]).encode())]
        elif of := source.get("downwardAPI"):
            return [(item["path"], b"weir") for item in of["items"] if item["fieldRef"]["fieldPath"] == "metadata.namespace"]
        else:
            return []
        items = of.get("items") or [{"key": key, "path": key} for key in data]
        return [(item["path"], data[item["key"]]) for item in items]

    def token(self, audience, seconds, account=None):
        """What a kubelet asks for, bound to this pod."""
        metadata = self.object["metadata"]
        options = [f"--duration={seconds}s", "--bound-object-kind=Pod", f"--bound-object-name={self.name}", f"--bound-object-uid={metadata['uid']}"]
        options += [f"--audience={audience}"] if audience else []
        return kubectl("create", "token", "--namespace=weir", account or self.object["spec"]["serviceAccountName"], *options).strip()

    def command(self, *arguments):
        user = [f"--userspec={USER}:{USER}", f"--groups={USER}"]
        return ["/usr/sbin/chroot", *user, str(self.root), *arguments]

    def environment(self):
        fields = {"metadata.name": self.name, "spec.nodeName": "node"}
        named = {it["name"]: it["value"] if "value" in it else fields[it["valueFrom"]["fieldRef"]["fieldPath"]] for it in self.container["env"]}
        return {"PATH": "/opt/weir:/opt/kubernetes:/usr/bin", "KUBERNETES_SERVICE_HOST": API, "KUBERNETES_SERVICE_PORT": "443", **named}

    def program(self):
        return f"weir-{self.container['name']}"

    def start(self):
        self.cluster.spawn(self.name, self.command(self.program(), *self.container.get("args", [])), self.environment())
        wait_for(f"{self.name} is ready", lambda: self.exec("status")[0] == 0)

    def exec(self, *arguments):
        """As `kubectl exec POD -- weir-edge status`."""
        done = subprocess.run(self.command(self.program(), *arguments), env=self.environment(), capture_output=True, text=True)
        return done.returncode, done.stdout

    def status(self):
        return json.loads(self.exec("status", "--json")[1] or "{}")
