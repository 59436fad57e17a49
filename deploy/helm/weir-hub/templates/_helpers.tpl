{{- define "weir.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.fullname" -}}
{{- $name := include "weir.name" . -}}
{{- .Values.fullnameOverride | default (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Takes a dict with `root` and `component`, as all below. */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ include "weir.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Takes also `name`, if it is another one, and `labels` and `annotations` beside those of all objects. */}}
{{- define "weir.metadata" -}}
name: {{ include "weir.fullname" .root }}-{{ .name | default .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "weir.labels" . | nindent 2 }}
  {{- with merge (dict) (.labels | default dict) .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* How origins are reached inside this Kubernetes cluster. */}}
{{- define "weir.originHost" -}}
{{ include "weir.fullname" . }}-origin.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* The names that the certificate of origins must have, one on each line. */}}
{{- define "weir.originNames" -}}
{{- $host := include "weir.originHost" . -}}
{{ $host }}
*.{{ $host }}
{{- range $name := list "operators" "webhooks" }}
{{- if (get $.Values.origin $name).enabled }}
{{ include "weir.fullname" $ }}-{{ $name }}.{{ $.Release.Namespace }}.svc
{{- end }}
{{- end }}
{{- if include "weir.isHub" . }}
localhost
{{- end }}
{{- range .Values.origin.hosts }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Whether edges run in the pods of origins: "true" or nothing. */}}
{{- define "weir.isHub" -}}
{{- if and .Values.edge.enabled (eq .Values.edge.kind "Hub") }}true{{ end -}}
{{- end -}}

{{/* Where the files of a component are. In a hub the edge has folders of its own. */}}
{{- define "weir.etc" -}}
/etc/weir{{ if and (eq .component "edge") (include "weir.isHub" .root) }}-edge{{ end }}
{{- end -}}

{{- define "weir.data" -}}
/var/lib/weir{{ if and (eq .component "edge") (include "weir.isHub" .root) }}-edge{{ end }}
{{- end -}}

{{/* origin.toml. What the chart sets wins. */}}
{{- define "weir.origin.toml" -}}
{{- $config := deepCopy .Values.origin.config -}}
{{- $_ := set $config "listen" (printf "%s:7400" .Values.listenAddress) -}}
{{- $_ := set $config "admin_listen" (printf "%s:7490" .Values.listenAddress) -}}
{{- $_ := set $config "data_dir" "/var/lib/weir" -}}
{{- $_ := set $config "watch_config" true -}}
{{- $_ := set $config "tls" (dict "certificate" "tls/tls.crt" "key" "tls/tls.key" "client_ca" "tls/ca.crt") -}}
{{- if .Values.origin.operators.enabled -}}
{{- $_ := set $config "operator_listen" (printf "%s:7401" .Values.listenAddress) -}}
{{- end -}}
{{- if .Values.origin.webhooks.enabled -}}
{{- if not .Values.origin.operators.enabled -}}
{{- fail "origin.webhooks.enabled: the listener of webhooks needs origin.operators.enabled" -}}
{{- end -}}
{{- $_ := set $config "webhook_listen" (printf "%s:7402" .Values.listenAddress) -}}
{{- end -}}
{{- with $config.cluster -}}
{{- $_ := set . "advertise" ($.Values.origin.advertise | default (printf "https://{name}.%s:7400" (include "weir.originHost" $))) -}}
{{- else -}}
{{- if gt (int .Values.origin.replicas) 1 -}}
{{- fail "origin.replicas: several origins need origin.config.cluster, for example {engine: bucket}" -}}
{{- end -}}
{{- if ne .Values.origin.volume.kind "claim" -}}
{{- fail "origin.volume.kind: an origin without origin.config.cluster has its records in its volume, which must be a claim" -}}
{{- end -}}
{{- end -}}
{{- include "weir.toml" $config | trim -}}
{{- end -}}

{{/* edge.toml. Origins of this release come first. */}}
{{- define "weir.edge.toml" -}}
{{- $config := deepCopy .Values.edge.config -}}
{{- $_ := set $config "listen" (printf "%s:7443" .Values.listenAddress) -}}
{{- $_ := set $config "watch_config" true -}}
{{- $_ := set $config "admin_listen" (printf "%s:7491" .Values.listenAddress) -}}
{{- $_ := set $config "admin" (merge (dict "tls" true) ($config.admin | default dict)) -}}
{{- $_ := set $config "tls" (dict "certificate" "tls/tls.crt" "key" "tls/tls.key") -}}
{{- $_ := set $config "cache" (merge (dict "dir" (include "weir.data" (dict "root" . "component" "edge"))) ($config.cache | default dict)) -}}
{{- $origins := list -}}
{{- if .Values.origin.enabled -}}
{{- $host := include "weir.isHub" . | empty | not | ternary "localhost" (include "weir.originHost" .) -}}
{{- $origins = list (dict "url" (printf "https://%s:7400" $host)) -}}
{{- end -}}
{{- $all := list -}}
{{- range concat $origins ($config.origin | default list) -}}
{{- $all = append $all (merge . (dict "client_certificate" "client-tls/tls.crt" "client_key" "client-tls/tls.key" "ca" "client-tls/ca.crt")) -}}
{{- end -}}
{{- if not $all -}}
{{- fail "edge.config.origin: edges without origins in this release need the URL of one" -}}
{{- end -}}
{{- $_ := set $config "origin" $all -}}
{{- include "weir.toml" $config | trim -}}
{{- end -}}

{{/* The fields of a pod that both roles have. Takes also `values`, those of the component. */}}
{{- define "weir.pod" -}}
serviceAccountName: {{ include "weir.fullname" .root }}-{{ .component }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  {{- with .values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "weir.selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with get $.values $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The same of its container. */}}
{{- define "weir.container" -}}
name: {{ .component }}
image: {{ .values.image }}
imagePullPolicy: {{ .root.Values.imagePullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
  {{- toYaml .values.resources | nindent 2 }}
livenessProbe:
  {{- include "weir.probe" (dict "component" .component "path" "/livez") | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  {{- include "weir.probe" (dict "component" .ready "path" "/readyz") | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- define "weir.probe" -}}
httpGet: {path: {{ .path }}, port: {{ .component }}-admin, scheme: {{ eq .component "edge" | ternary "HTTPS" "HTTP" }}}
{{- end -}}

{{/* The configuration is mounted as a folder, because a mount with `subPath` is never updated. It can have no other mounts in it,
so these lie beside it, and WEIR_BASE_DIR says so. */}}
{{- define "weir.mounts" -}}
{{- $name := .component -}}
{{- $etc := include "weir.etc" . -}}
- {name: {{ $name }}-config, mountPath: {{ $etc }}/config, readOnly: true}
- {name: {{ $name }}-tls, mountPath: {{ $etc }}/tls, readOnly: true}
{{- if eq $name "edge" }}
- {name: edge-client-tls, mountPath: {{ $etc }}/client-tls, readOnly: true}
{{- end }}
{{- range $folder, $_ := .values.secrets }}
- {name: {{ include "weir.secretVolume" (list $name $folder) }}, mountPath: {{ $etc }}/secrets/{{ $folder }}, readOnly: true}
{{- end }}
- {name: {{ $name }}-data, mountPath: {{ include "weir.data" . }}}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "weir.volumes" -}}
{{- $name := .component -}}
- name: {{ $name }}-config
  configMap: {name: {{ include "weir.fullname" .root }}-{{ $name }}}
- name: {{ $name }}-tls
  secret: {secretName: {{ .values.certificate }}, defaultMode: 0440}
{{- if eq $name "edge" }}
- name: edge-client-tls
  secret: {secretName: {{ .values.clientCertificate }}, defaultMode: 0440}
{{- end }}
{{- range $folder, $secret := .values.secrets }}
- name: {{ include "weir.secretVolume" (list $name $folder) }}
  secret: {secretName: {{ $secret }}, defaultMode: 0440}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- if eq .values.volume.kind "emptyDir" }}
- name: {{ $name }}-data
  emptyDir: {sizeLimit: {{ .values.volume.size }}}
{{- else if eq .values.volume.kind "hostPath" }}
- name: {{ $name }}-data
  hostPath: {path: {{ .values.volume.hostPath }}, type: {{ empty .values.volume.chownImage | ternary "Directory" "DirectoryOrCreate" }}}
{{- end }}
{{- end -}}

{{/* The ports of the edge, in whatever pod it is. */}}
{{- define "weir.edgePorts" -}}
- {name: agents, containerPort: 7443, protocol: TCP}
- {name: agents-udp, containerPort: 7443, protocol: UDP}
- {name: edge-admin, containerPort: 7491}
{{- end -}}

{{/* All edges have one certificate: they are told apart by the node, of which a DaemonSet has one pod, or by the pod. */}}
{{- define "weir.edgeName" -}}
- name: WEIR_EDGE_NAME
  valueFrom: {fieldRef: {fieldPath: {{ eq .Values.edge.kind "DaemonSet" | ternary "spec.nodeName" "metadata.name" }}}}
{{- end -}}

{{- define "weir.drainDelay" -}}
lifecycle:
  preStop:
    sleep: {seconds: {{ .Values.edge.drainDelaySeconds }}}
{{- end -}}

{{/* A folder may be called after a host: git.example. Names of volumes have no dots. */}}
{{- define "weir.secretVolume" -}}
{{- $folder := last . -}}
{{ first . }}-{{ $folder | replace "." "-" | replace "/" "-" | replace "_" "-" | trunc 40 | trimSuffix "-" }}-{{ sha256sum $folder | trunc 6 }}
{{- end -}}

{{/* The volume of a component, for the pods of a StatefulSet. */}}
{{- define "weir.claim" -}}
{{- if eq .values.volume.kind "claim" }}
- metadata: {name: {{ .component }}-data}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .values.volume.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests: {storage: {{ .values.volume.size }}}
{{- end }}
{{- end -}}

{{- define "weir.configMap" -}}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "weir.metadata" . | nindent 2 }}
data:
  {{ .component }}.toml: |
    {{- .config | nindent 4 }}
{{- end -}}

{{/* What needs a restart of a component's pods when it changes: all of the configuration but what is applied while they run. */}}
{{- define "weir.restart" -}}
{{- $origin := omit .root.Values.origin.config "repository" "service" "agent" "assignment" "operator" -}}
{{- $edge := deepCopy .root.Values.edge.config -}}
{{- with $edge.auth -}}
{{- $_ := set $edge "auth" (omit . "keys" "deny") -}}
{{- end -}}
{{- $of := dict "listen" .root.Values.listenAddress "advertise" .root.Values.origin.advertise "origins" .root.Values.origin.enabled -}}
{{- if eq .component "origin" -}}
{{- $_ := set $of "origin" $origin -}}
{{- end -}}
{{- if or (eq .component "edge") (include "weir.isHub" .root) -}}
{{- $_ := set $of "edge" $edge -}}
{{- end -}}
{{- toJson $of -}}
{{- end -}}

{{/* Labels and annotations of a pod. */}}
{{- define "weir.podMetadata" -}}
labels:
  {{- include "weir.selector" . | nindent 2 }}
  {{- with merge (dict) .values.podLabels .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include "weir.restart" . | sha256sum }}
  {{- with merge (dict) .values.podAnnotations .root.Values.commonAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "weir.serviceAccount" -}}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "weir.metadata" (merge (dict "annotations" .values.serviceAccount.annotations) .) | nindent 2 }}
automountServiceAccountToken: false
{{- end -}}

{{- define "weir.disruptionBudget" -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "weir.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "weir.selector" . | nindent 6 }}
{{- end -}}
