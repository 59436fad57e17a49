"""What objects of the chart must have, and what they say of each other."""
import re
import subprocess

import memory

# What is no part of Kubernetes, and has no schema here.
CUSTOM = ["monitoring.coreos.com", "cert-manager.io", "gateway.networking.k8s.io"]
POD = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def selected_by(selector, pods):
    return [found for found in pods if selector.items() <= found[1].items()]


def listens(config):
    """The listeners of a configuration. Edges listen for HTTP/3 too."""
    protocols = ["TCP", "UDP"] if "cache" in config else ["TCP"]
    listeners = [("TCP", config[key]) for key in ["operator_listen", "webhook_listen", "admin_listen"] if key in config]
    listeners += [(protocol, config["listen"]) for protocol in protocols]
    return [(protocol, int(address.rsplit(":")[-1])) for protocol, address in listeners]


def listeners_of(workload):
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return [(port.get("protocol", "TCP"), port["containerPort"]) for port in container["ports"]]


def bounds_of_memory(name, config, container):
    """The bounds of an edge leave a fifth of the container's memory to all else; in a hub, half to the origin."""
    share = 0.8 if container["name"] == "edge" else 0.5
    bounds = memory.edge(config)
    room = share * memory.bytes_of(container["resources"]["limits"]["memory"])
    assert sum(bounds.values()) <= room, f"{name}: {sum(bounds.values()):,.0f} of {room:,.0f}: {bounds}"


def security(name, spec):
    """The standard `restricted` of Kubernetes, but for the folder of a node and what gives it to the user of the edge."""
    assert POD.items() <= spec["securityContext"].items(), name
    for container in spec.get("initContainers", []) + spec["containers"]:
        context = container["securityContext"]
        if container["name"] == "chown":
            assert context["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}, name
            context = {**context, "capabilities": {"drop": ["ALL"]}}
        assert CONTAINER.items() <= context.items(), f"{name}: {container['name']}"
    volumes = [volume["name"] for volume in spec["volumes"] if "hostPath" in volume]
    assert volumes in ([], ["edge-data"]), f"{name}: {volumes}"


def cache(workload):
    """The cache of an edge outlives its pod, and no two pods use one."""
    spec = workload["spec"]["template"]["spec"]
    claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
    kinds = {volume["name"]: set(volume) - {"name"} for volume in spec["volumes"]}
    return "edge-data" in claims or kinds["edge-data"] == {"hostPath"}


def certificates(kinds, pods):
    """Their names are those of the Services and of the PodMonitors that reach what has them."""
    found = {certificate["metadata"]["name"]: certificate["spec"] for certificate in kinds.get("Certificate", [])}
    if not found:
        return
    for service in kinds["Service"]:
        role = "edge" if service["spec"]["ports"][0]["targetPort"] == "agents" else "origin"
        (names,) = [spec["dnsNames"] for name, spec in found.items() if name.endswith(f"-{role}")]
        name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
        assert name in names, f"{name}: {names}"
        if service["spec"].get("clusterIP") == "None":
            assert f"*.{name}" in names, names
    mounted = {volume["secret"]["secretName"] for workload, _, _ in pods for volume in workload["spec"]["template"]["spec"]["volumes"] if "secret" in volume}
    assert {spec["secretName"] for spec in found.values()} <= mounted
    for monitor in kinds.get("PodMonitor", []):
        if tls := monitor["spec"]["podMetricsEndpoints"][0].get("tlsConfig"):
            (spec,) = [spec for spec in found.values() if spec["secretName"] == tls["ca"]["secret"]["name"]]
            assert tls["serverName"] in spec["dnsNames"], spec


def network_policies(policies, pods):
    """Each listener of each pod has a rule, and no rule has a port without a listener."""
    for workload, labels, _ in pods if policies else []:
        listeners = listeners_of(workload)
        selected = [policy["spec"] for policy in policies if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()]
        ruled = [(port["protocol"], port["port"]) for spec in selected for rule in spec["ingress"] for port in rule["ports"]]
        assert sorted(ruled) == sorted(listeners), f"{workload['metadata']['name']}: {sorted(ruled)}, not {sorted(listeners)}"
        # Members of a cluster, and edges, reach origins.
        peers = [peer for spec in selected for rule in spec["ingress"] for port in rule["ports"] if port["port"] == 7400 for peer in rule["from"]]
        for _, other, _ in pods if peers else []:
            assert any(peer.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= other.items() for peer in peers), other


def routes(kinds):
    """What routes to webhooks names a Service of this release, and its port."""
    services = {service["metadata"]["name"]: service["spec"]["ports"] for service in kinds["Service"]}
    for ingress in kinds.get("Ingress", []):
        backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        assert backend["port"]["name"] in [port["name"] for port in services[backend["name"]]], backend
    for route in kinds.get("HTTPRoute", []):
        (backend,) = route["spec"]["rules"][0]["backendRefs"]
        assert backend["port"] in [port["port"] for port in services[backend["name"]]], backend
    for policy in kinds.get("BackendTLSPolicy", []):
        (target,) = policy["spec"]["targetRefs"]
        name = f"{target['name']}.{policy['metadata']['namespace']}.svc"
        assert target["name"] in services and policy["spec"]["validation"]["hostname"] == name, policy


def test(kinds):
    """What `helm test` asks are pods and Services of this release, at ports that they have."""
    (pod,) = kinds["Pod"]
    security("test", {"volumes": [], **pod["spec"]})
    (script,) = pod["spec"]["containers"][0]["args"]
    subprocess.run(["sh", "-nc", script], check=True)
    asked = re.findall(r"https?://([\w.-]+):(\d+)/readyz", script)
    origins = [found for found in kinds.get("StatefulSet", []) if found["metadata"]["name"].endswith("-origin")]
    reachable = [
        (f"{found['metadata']['name']}-{number}.{found['spec']['serviceName']}.{found['metadata']['namespace']}.svc", str(port))
        for found in origins
        for number in range(found["spec"]["replicas"])
        for protocol, port in listeners_of(found)
        if port == 7490
    ]
    assert asked == reachable, f"{asked}, not {reachable}"
    services = [
        (f"{found['metadata']['name']}.{found['metadata']['namespace']}.svc", str(port["port"]))
        for found in kinds["Service"]
        for port in found["spec"]["ports"]
        if port["targetPort"] == "agents"
    ]
    assert re.findall(r"--connect-to ::([\w.-]+):(\d+)", script) in ([], services), script
