{{- define "agent.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "agent.fullname" -}}
{{- $name := include "agent.name" . -}}
{{- .Values.fullnameOverride | default (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "agent.selector" -}}
app.kubernetes.io/name: {{ include "agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Takes a dict with `root`, and maybe `suffix`, `namespace`, `labels` and `annotations`. */}}
{{- define "agent.metadata" -}}
name: {{ include "agent.fullname" .root }}{{ with .suffix }}-{{ . }}{{ end }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- include "agent.selector" .root | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
  {{- with merge (dict) (.labels | default dict) .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* How a service is applied. What leaves the release leaves the cluster: a ConfigMap remembers what has been applied. */}}
{{- define "agent.exec" -}}
exec kubectl apply --namespace={{ . }} --server-side --force-conflicts --field-manager=weir-agent --prune --applyset=configmaps/weir-$WEIR_SERVICE --recursive --filename=.
{{- end -}}

{{/* What needs a restart when it changes: all of the configuration but what is applied while the agent runs. */}}
{{- define "agent.restart" -}}
{{- $config := omit .Values.config "service" "services" "allow" "edge_order" "edge_retry_interval" "http" "proxy" -}}
{{- dict "config" $config "name" .Values.name "listen" .Values.listenAddress "trust" .Values.trust | toJson -}}
{{- end -}}

{{/* agent.toml. What the chart sets wins. */}}
{{- define "agent.toml" -}}
{{- $config := deepCopy .Values.config -}}
{{- with .Values.name -}}
{{- $_ := set $config "name" . -}}
{{- end -}}
{{- $_ := set $config "admin_listen" (printf "%s:7492" .Values.listenAddress) -}}
{{- $_ := set $config "root" "/var/lib/weir" -}}
{{- $_ := set $config "watch_config" true -}}
{{- $_ := set $config "edges" .Values.edges -}}
{{- $_ := set $config "ca" (or .Values.ca.pem .Values.ca.configMap | empty | ternary "/etc/ssl/certs/ca-certificates.crt" "ca.pem") -}}
{{- with .Values.identity -}}
{{- if or .tokenSecret (not .certificate) -}}
{{- $_ := set $config "token_file" "token" -}}
{{- end -}}
{{- if .certificate -}}
{{- $_ := set $config "client_certificate" "tls/tls.crt" -}}
{{- $_ := set $config "client_key" "tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- $trust := list -}}
{{- range $index, $entry := .Values.trust -}}
{{- $trust = append $trust (dict "services" $entry.services "keys" (printf "trust-%d.pub" $index)) -}}
{{- end -}}
{{- with $trust -}}
{{- $_ := set $config "trust" . -}}
{{- end -}}
{{- $services := list -}}
{{- $names := list -}}
{{- range $namespace, $applied := .Values.apply -}}
{{- range $name := $applied.services -}}
{{- $names = append $names $name -}}
{{- $services = append $services (dict "name" $name "exec" (include "agent.exec" $namespace)) -}}
{{- end -}}
{{- end -}}
{{- with concat $services ($config.service | default list) -}}
{{- $_ := set $config "service" . -}}
{{- end -}}
{{- if and $names (eq "assigned" ($config.services | default "")) (not $config.allow) -}}
{{- $_ := set $config "allow" $names -}}
{{- end -}}
{{- include "weir.toml" $config | trim -}}
{{- end -}}

{{- define "agent.pod" -}}
serviceAccountName: {{ include "agent.fullname" . }}
# For kubectl, with the audience of this cluster's API.
automountServiceAccountToken: {{ or .Values.serviceAccount.apiToken (not (empty .Values.apply)) }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with get $.Values $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "agent.container" -}}
name: agent
image: {{ .Values.image }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  - {name: WEIR_CONFIG, value: /etc/weir/agent.toml}
  {{- if .Values.apply }}
  - {name: KUBECACHEDIR, value: /tmp}
  - {name: KUBECTL_APPLYSET, value: "true"}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/weir, readOnly: true}
  - {name: releases, mountPath: /var/lib/weir}
  - {name: tmp, mountPath: /tmp}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* All volumes but that of releases. */}}
{{- define "agent.volumes" -}}
- name: config
  projected:
    defaultMode: 0440
    sources:
      - configMap: {name: {{ include "agent.fullname" . }}}
      {{- with .Values.ca.configMap }}
      - configMap: {name: {{ . }}, items: [{key: ca.crt, path: ca.pem}]}
      {{- end }}
      {{- with .Values.identity }}
      {{- if .tokenSecret }}
      - secret: {name: {{ .tokenSecret }}, items: [{key: token, path: token}]}
      {{- else if not .certificate }}
      - serviceAccountToken: {path: token, audience: {{ .audience }}, expirationSeconds: {{ .expirationSeconds }}}
      {{- end }}
      {{- with .certificate }}
      - secret: {name: {{ . }}, items: [{key: tls.crt, path: tls/tls.crt}, {key: tls.key, path: tls/tls.key}]}
      {{- end }}
      {{- end }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
