{{/* A value of YAML as TOML on one line. All numbers of the configuration are integers. */}}
{{- define "weir.toml.value" -}}
{{- if kindIs "map" . -}}
{ {{ range $i, $key := keys . | sortAlpha }}{{ if $i }}, {{ end }}{{ $key }} = {{ include "weir.toml.value" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "weir.toml.value" $item }}{{ end }}]
{{- else if kindIs "string" . -}}
{{ toRawJson . }}
{{- else if kindIs "bool" . -}}
{{ . }}
{{- else -}}
{{ int64 . }}
{{- end -}}
{{- end -}}

{{/* The keys of a table, one on each line. */}}
{{- define "weir.toml.keys" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ include "weir.toml.value" $value }}
{{- end }}
{{- end -}}

{{/* A file: its own keys, then its tables and lists of tables. */}}
{{- define "weir.toml" -}}
{{- $tables := dict -}}
{{- range $key, $value := . }}
{{- if or (kindIs "map" $value) (and (kindIs "slice" $value) $value (kindIs "map" (first $value))) }}
{{- $_ := set $tables $key $value }}
{{- else }}
{{ $key }} = {{ include "weir.toml.value" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := $tables }}
{{- if kindIs "map" $value }}

[{{ $key }}]
{{- include "weir.toml.keys" $value }}
{{- else }}
{{- range $value }}

[[{{ $key }}]]
{{- include "weir.toml.keys" . }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
