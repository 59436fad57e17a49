//! Signatures of one digest that cosign 3.1.1 made, and their keys.

pub(super) const DIGEST: &str = "c80ba7e01df7b7369e99c726b2c6450358981797adfddac68f4b3c8969f1252b";

/// A key, and what it signed.
pub(super) struct Signed {
    pub(super) key: &'static str,
    pub(super) payload: &'static str,
    pub(super) signature: &'static str,
    pub(super) bundle: &'static str,
}

pub(super) const P256: Signed = Signed {
    key: "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE920Lozze7RCQoJEonXbdHVqiq5jh
D1zgwSOWUz90791rdP683/XRQ3aw+oujNDXDm8IqlcB26ZdBipjv4n6b5w==
-----END PUBLIC KEY-----
",
    payload: r#"{"critical":{"identity":{"docker-reference":"127.0.0.1:5077/acme/cosign"},"image":{"docker-manifest-digest":"sha256:c80ba7e01df7b7369e99c726b2c6450358981797adfddac68f4b3c8969f1252b"},"type":"cosign container image signature"},"optional":null}"#,
    signature: "MEUCIQD/PAea9QMH6mIWeyARR19iGejtq6MqKzOwB42sUyZQOgIgbYXjT1vWhiM13U4jMyKBfQngpfdZzWGmRuVXEtLBwE0=",
    bundle: r#"{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"UJENvBTdyAaVivryKWhG6Dsmmu25shRI8q4tjYT/K9c="}},"dsseEnvelope":{"payload":"eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCJzdWJqZWN0IjpbeyJkaWdlc3QiOnsic2hhMjU2IjoiYzgwYmE3ZTAxZGY3YjczNjllOTljNzI2YjJjNjQ1MDM1ODk4MTc5N2FkZmRkYWM2OGY0YjNjODk2OWYxMjUyYiJ9LCJhbm5vdGF0aW9ucyI6e319XSwicHJlZGljYXRlVHlwZSI6Imh0dHBzOi8vc2lnc3RvcmUuZGV2L2Nvc2lnbi9zaWduL3YxIiwicHJlZGljYXRlIjp7fX0=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"MEUCIENwE3mF79ZMR9hDcPTsBKbXAXCMQFatwt49er+TYC9uAiEAxRE0USYx9vTQ8FDeXPFLo9Taz92JkgkPIF67ELBpOvo="}]}}"#,
};

pub(super) const RSA: Signed = Signed {
    key: "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAnhdMc84p5Ixqys2SP7TR
fPkhTnVCHWrZwG7m5VtA2RZfskoDbjAwq5YjNzb8WkzXzXgKsJZlnA6AYQNXQjBc
67pJx3ks2gNgXs2n7nW9aMgWcTw5dPXLf+CD+/p6EQheRcIaC3GwnDbvo+dUVUg3
QmUWbSiy3FNLxncEmX1ZX26i3XQ1SkyS0iCr+TZ4JXz0n63HvTJTOtOZ2jcQkfOu
5qfQ2TeDJ/kZR8BUC1+nBhh7vQ0n7vM0stHggdVE340GbEMLVMyeTWqUfnec1tCl
ULNaIO7aTjMUjnwziDjJo0//WVTbZqYWESdKd4nz3SLtOOXySv1Y6RHYlJh08Mq5
nQIDAQAB
-----END PUBLIC KEY-----
",
    payload: r#"{"critical":{"identity":{"docker-reference":"127.0.0.1:5077/acme/rsa"},"image":{"docker-manifest-digest":"sha256:c80ba7e01df7b7369e99c726b2c6450358981797adfddac68f4b3c8969f1252b"},"type":"cosign container image signature"},"optional":null}"#,
    signature: "gBvlX/d0l+x7g1c3Co2GMDk9v4rugwh/ZOj5+WDeavtNwvVkxtJqKN/fLkJS3ZcJy+WJGd9aaaK+WI8EvvRLJGJhWeJbDujUheZbmZ48ziAGReTqDnjoyLwDdKPeB1gy3auHo5DBkAm/T7IZ42uso8yCIFOSAk2JUOCDJUlaNRnWCjv30WMfyt3TKk2bex3m4l36TXGoPS5sEkdcU7nFGnoeVKA3LHSMWqXYzvqLyA8m9E1VG1JB+t8ejePl1ylAYebpEbzI4MoZ6iqI0ZR6ZAgvxeEYDf98p1+qBTQjvefsVsnl9Bs86e10JXYPeUKCFxSI9Q7TNZNf6ZE33hFxlg==",
    bundle: r#"{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"DkqPHkl6LgmPSeK8wDEU+Ae5NTF62jDfaOZeRh3ZZ34="}},"dsseEnvelope":{"payload":"eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCJzdWJqZWN0IjpbeyJkaWdlc3QiOnsic2hhMjU2IjoiYzgwYmE3ZTAxZGY3YjczNjllOTljNzI2YjJjNjQ1MDM1ODk4MTc5N2FkZmRkYWM2OGY0YjNjODk2OWYxMjUyYiJ9LCJhbm5vdGF0aW9ucyI6e319XSwicHJlZGljYXRlVHlwZSI6Imh0dHBzOi8vc2lnc3RvcmUuZGV2L2Nvc2lnbi9zaWduL3YxIiwicHJlZGljYXRlIjp7fX0=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"VelzZezknYnCoH3edR06jiZI3Am2iRgmBT6qieCy/qgntZleAu9CyZ/8V8Q6Q8+1d26uPqjLn/AvC//BEjlmCKnHbuIPHwebKEGAAG+2a5qO3t41N6xqL/XWQOFGMROqD0Q3tGfGQRO7enYcHSrD/FG606Haux1h8VIzwKGP4csj09YV7V0eT14Dde8n7PvMs6zqjLRPwTkcxQzDLLrWYsaiKvk9U+iIFUm2fejyOjiaeOzHipEaiCttwWR7eit4pSatxe/DOR2rKt29sXyEvQ8Wa6zaRp6G1WGU6gd4SSagKMtZYScvgAro8zAH4TveH5aqyvG7E1ymetTWwNhU0Q=="}]}}"#,
};

/// Of the variant Ed25519ph, which `cosign verify` does not accept either.
#[cfg(test)]
pub(super) const ED25519_PH: Signed = Signed {
    key: "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA/bhRIUMyBHFhNJ0sd2Wyx/kWln3ZoUBQhOufildmCvY=
-----END PUBLIC KEY-----
",
    payload: r#"{"critical":{"identity":{"docker-reference":"127.0.0.1:5077/acme/ed"},"image":{"docker-manifest-digest":"sha256:c80ba7e01df7b7369e99c726b2c6450358981797adfddac68f4b3c8969f1252b"},"type":"cosign container image signature"},"optional":null}"#,
    signature: "4G6xvsn9X37EQX8BEpiOikGfmdhaFMPEvVvduqzwIZfOYVFjXMSEVCW9+kj+7BeKb2mbJX4uisB8UKek6pQ7CA==",
    bundle: r#"{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"EJJaj13YnF1ITnxLFXsyJFxYDvCZJFVfJLpCxbvgYhg="}},"dsseEnvelope":{"payload":"eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCJzdWJqZWN0IjpbeyJkaWdlc3QiOnsic2hhMjU2IjoiYzgwYmE3ZTAxZGY3YjczNjllOTljNzI2YjJjNjQ1MDM1ODk4MTc5N2FkZmRkYWM2OGY0YjNjODk2OWYxMjUyYiJ9LCJhbm5vdGF0aW9ucyI6e319XSwicHJlZGljYXRlVHlwZSI6Imh0dHBzOi8vc2lnc3RvcmUuZGV2L2Nvc2lnbi9zaWduL3YxIiwicHJlZGljYXRlIjp7fX0=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"9OuNxvzmNokDhABM2DjL0GCDzJC5R25aa4PEM4usKagsZI8avrqo3fIFtAs7e7vz0Y8HdAfm+T1WgTuo4qTiCg=="}]}}"#,
};

/// By `cosign sign-blob`: of the payload of the last, and of its envelope.
#[cfg(test)]
pub(super) const ED25519: [&str; 2] = [
    "n4/4M/AOLrDQAP9tW8XbZeDk+OR4Z9QWP811V0nemZ9HuJV8bTaZXOGKpz5NWPWc5mb3f6jkvMxsvJaTreQEBg==",
    "ccnLAPNz7ANmI3KIy7KkU+nMkDaK8O5b3UGP663hwk7yv8Atz7rv9SCd0uTEUxOuf6PdZDfCoCqb2rMcSYOjCw==",
];

/// By the first key: of its payload with the type "another type".
#[cfg(test)]
pub(super) const OTHER_TYPE: &str =
    "MEYCIQD9CMULkZXREUwAeiefWoGZedAzeL3YQPr8g3Xz9IOJTQIhAIE9ac8mdLxmc+mITHLDk0eUjP+IIfii1fRUVLupDQJZ";

/// By the first key: of an envelope with the predicate `https://spdx.dev/Document`.
#[cfg(test)]
pub(super) const ATTESTATION: &str =
    "MEUCID4Lz9I7BQhlWepYvWr4WEe95kibIqQpr6LazXhj+MIDAiEAjbgwMpgYkpWszfvdEuYTxjREPLWfdwGlw04J/YZ/MLY=";
