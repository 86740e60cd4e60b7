//! The operator's console: a page that shows the pool live and acts on it, built into the program.
//!
//! Its files hold no data, so they are given to whoever passes the host check; the page asks for the token and sends it
//! with every call. What phones and clients name themselves is shown in it: its policy lets no script run but these
//! files, and no text become an element. No framework and no build step: what is here is what a browser reads.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use ring::digest::{SHA256, digest};

use super::answer::AdminError;

/// No source but this listener, no script but the files below, no text that becomes an element, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal: $kind:expr),+ $(,)?) => {
        &[$(File { name: $name, kind: $kind, text: include_str!(concat!("console/", $name)) }),+]
    };
}

const FILES: &[File] = files! {
    "index.html": HTML,
    "favicon.svg": IMAGE,
    "console.css": STYLE,
    "console.js": SCRIPT,
    "actions.js": SCRIPT,
    "chart.js": SCRIPT,
    "detail.js": SCRIPT,
    "dom.js": SCRIPT,
    "feed.js": SCRIPT,
    "grid.js": SCRIPT,
    "panels.js": SCRIPT,
    "pool.js": SCRIPT,
    "state.js": SCRIPT,
    "verdict.js": SCRIPT,
    "words.js": SCRIPT,
};

/// One tag for all files: modules of two builds must not meet in one page.
static TAG: LazyLock<HeaderValue> = LazyLock::new(|| {
    let all: String = FILES.iter().map(|file| file.text).collect();
    let hash = hex::encode(&digest(&SHA256, all.as_bytes()).as_ref()[..12]);
    HeaderValue::try_from(format!("\"{hash}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"console\""))
});

/// Whether a path is one of the page's, for which no token is needed.
pub(super) fn is_of_page(path: &str) -> bool {
    path == "/" || path == "/favicon.svg" || path.starts_with("/console/")
}

/// The operator's console, a page for browsers.
#[utoipa::path(get, path = "/", tag = "console",
    responses((status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 304, description = "As the browser has it")))]
pub(super) async fn page(headers: HeaderMap) -> Result<Response, AdminError> {
    serve("index.html", &headers)
}

/// The console's icon.
#[utoipa::path(get, path = "/favicon.svg", tag = "console",
    responses((status = 200, description = "An image", body = String, content_type = "image/svg+xml"),
        (status = 304, description = "As the browser has it")))]
pub(super) async fn icon(headers: HeaderMap) -> Result<Response, AdminError> {
    serve("favicon.svg", &headers)
}

/// A script or style of the console.
#[utoipa::path(get, path = "/console/{file}", tag = "console",
    params(("file" = String, Path, description = "As the page names it")),
    responses((status = 200, description = "The file", body = String, content_type = "text/javascript"),
        (status = 304, description = "As the browser has it"), (status = 404, body = super::view::ErrorView)))]
pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, AdminError> {
    serve(&name, &headers)
}

fn serve(name: &str, asked: &HeaderMap) -> Result<Response, AdminError> {
    let found = FILES.iter().find(|file| file.name == name);
    let file = found.ok_or_else(|| AdminError::NotFound("the console has no such file".into()))?;
    let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|known| known.split(',').any(|tag| tag.trim().trim_start_matches("W/") == *TAG));
    let mut response = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { file.text.into_response() };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, TAG.clone());
    // Kept, and asked about each time: after an upgrade the page must be the new one.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    if !is_known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn every_file_of_the_page_is_served_and_every_one_that_is_named_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/console");
        let kept: BTreeSet<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        // Tells Node, which runs the parts' own tests, that they are modules.
        let served = FILES.iter().map(|file| file.name.to_owned()).chain(["package.json".to_owned()]).collect();
        assert_eq!(kept, served);
        for file in FILES {
            for named in
                file.text.split(['"', '\'']).filter(|part| part.starts_with("./") || part.starts_with("/console/"))
            {
                let name = named.rsplit('/').next().unwrap();
                assert!(FILES.iter().any(|file| file.name == name), "{}: {named} is not served", file.name);
            }
        }
    }

    #[test]
    fn no_text_can_become_an_element_and_no_script_or_style_stands_in_the_page() {
        let makers = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "createContextualFragment",
            "DOMParser",
            "setHTML",
            "srcdoc",
            "javascript:",
            "import(",
        ];
        for file in FILES {
            for maker in makers {
                assert!(!file.text.contains(maker), "{}: {maker}", file.name);
            }
        }
        let page = FILES[0].text;
        let is_handler = |rest: &str| {
            rest.split_once('=')
                .is_some_and(|(name, _)| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase()))
        };
        assert!(!page.split(" on").skip(1).any(is_handler), "a handler stands in the page");
        assert!(!page.contains("<style") && !page.contains(" style="), "a style stands in the page");
        assert_eq!(page.matches("<script").count(), 1);
        assert!(
            !page.contains("http://")
                && page.matches("https://").count() == page.matches("placeholder=\"https://").count()
        );
    }

    #[test]
    fn a_browser_that_has_the_page_is_told_so_and_gets_the_policy_again() {
        let asked = HeaderMap::from_iter([(header::IF_NONE_MATCH, TAG.clone())]);
        let (first, again) = (serve("index.html", &HeaderMap::new()).unwrap(), serve("index.html", &asked).unwrap());
        assert_eq!((first.status(), again.status()), (StatusCode::OK, StatusCode::NOT_MODIFIED));
        for response in [&first, &again] {
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
        assert!(serve("../console.rs", &HeaderMap::new()).is_err());
    }

    #[test]
    fn only_paths_of_the_page_are_open() {
        for path in ["/", "/favicon.svg", "/console/console.js"] {
            assert!(is_of_page(path), "{path}");
        }
        for path in ["/admin/replicas", "//", "/console", "/metrics", "/favicon.svg/x"] {
            assert!(!is_of_page(path), "{path}");
        }
    }
}
