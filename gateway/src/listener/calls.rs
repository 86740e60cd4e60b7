//! The calls of the Files and Batch API, by path and method.

use http::Method;

use crate::error::ApiError;

/// What is asked about files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesCall {
    /// `POST /v1/files`.
    Upload,
    /// `GET /v1/files`.
    List,
    /// `GET /v1/files/{id}`.
    Retrieve(String),
    /// `DELETE /v1/files/{id}`.
    Delete(String),
    /// `GET /v1/files/{id}/content`.
    Content(String),
}

/// What is asked about batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchesCall {
    /// `POST /v1/batches`.
    Create,
    /// `GET /v1/batches`.
    List,
    /// `GET /v1/batches/{id}`.
    Retrieve(String),
    /// `POST /v1/batches/{id}/cancel`.
    Cancel(String),
}

impl FilesCall {
    /// The call of a path behind `/v1/files`; `None` if there is no such path.
    pub(super) fn find(rest: &str, method: &Method) -> Option<Result<Self, ApiError>> {
        let segments = segments(rest)?;
        let reads = reads(method);
        Some(match *segments {
            [] if method == Method::POST => Ok(Self::Upload),
            [] if reads => Ok(Self::List),
            [] => Err(ApiError::Method { allow: "GET, POST" }),
            [id] if reads => Ok(Self::Retrieve(id.to_owned())),
            [id] if method == Method::DELETE => Ok(Self::Delete(id.to_owned())),
            [_] => Err(ApiError::Method { allow: "GET, DELETE" }),
            [id, "content"] if reads => Ok(Self::Content(id.to_owned())),
            [_, "content"] => Err(ApiError::Method { allow: "GET" }),
            _ => return None,
        })
    }

    /// Its name in metrics and logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Upload => "upload_file",
            Self::List => "list_files",
            Self::Retrieve(_) => "retrieve_file",
            Self::Delete(_) => "delete_file",
            Self::Content(_) => "file_content",
        }
    }
}

impl BatchesCall {
    /// The call of a path behind `/v1/batches`; `None` if there is no such path.
    pub(super) fn find(rest: &str, method: &Method) -> Option<Result<Self, ApiError>> {
        let segments = segments(rest)?;
        let reads = reads(method);
        Some(match *segments {
            [] if method == Method::POST => Ok(Self::Create),
            [] if reads => Ok(Self::List),
            [] => Err(ApiError::Method { allow: "GET, POST" }),
            [id] if reads => Ok(Self::Retrieve(id.to_owned())),
            [_] => Err(ApiError::Method { allow: "GET" }),
            [id, "cancel"] if method == Method::POST => Ok(Self::Cancel(id.to_owned())),
            [_, "cancel"] => Err(ApiError::Method { allow: "POST" }),
            _ => return None,
        })
    }

    /// Its name in metrics and logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Create => "create_batch",
            Self::List => "list_batches",
            Self::Retrieve(_) => "retrieve_batch",
            Self::Cancel(_) => "cancel_batch",
        }
    }
}

fn reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// What stands between the slashes; `None` if something does not: `/v1/filesystem`, `/v1/files/`, `/v1/files//content`.
fn segments(rest: &str) -> Option<Vec<&str>> {
    if rest.is_empty() {
        return Some(Vec::new());
    }
    let segments: Vec<&str> = rest.strip_prefix('/')?.split('/').collect();
    segments.iter().all(|segment| !segment.is_empty()).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(method: &Method, rest: &str) -> Option<Option<FilesCall>> {
        FilesCall::find(rest, method).map(Result::ok)
    }

    #[test]
    fn a_path_and_a_method_are_one_call_or_none() {
        let id = || "file-a".to_owned();
        assert_eq!(file(&Method::POST, ""), Some(Some(FilesCall::Upload)));
        assert_eq!(file(&Method::HEAD, ""), Some(Some(FilesCall::List)));
        assert_eq!(file(&Method::GET, "/file-a"), Some(Some(FilesCall::Retrieve(id()))));
        assert_eq!(file(&Method::DELETE, "/file-a"), Some(Some(FilesCall::Delete(id()))));
        assert_eq!(file(&Method::GET, "/file-a/content"), Some(Some(FilesCall::Content(id()))));
        for (method, rest) in
            [(Method::PUT, ""), (Method::POST, "/file-a"), (Method::DELETE, "/file-a/content"), (Method::DELETE, "")]
        {
            assert_eq!(file(&method, rest), Some(None), "{method} {rest}");
        }
        for rest in ["/", "//", "/file-a/", "/file-a/contents", "/file-a/content/x", "system", "//content"] {
            assert_eq!(file(&Method::GET, rest), None, "{rest}");
        }
        let batch = |method, rest| BatchesCall::find(rest, &method).map(Result::ok);
        assert_eq!(batch(Method::POST, "/b/cancel"), Some(Some(BatchesCall::Cancel("b".into()))));
        assert_eq!(batch(Method::GET, "/b/cancel"), Some(None));
        assert_eq!(batch(Method::DELETE, "/b"), Some(None));
        assert_eq!(batch(Method::POST, "/b/cancel/"), None);
    }
}
