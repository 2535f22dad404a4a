//! Names of encodings.

/// The server's name of the encoding; `None` for UTF-8.
pub fn other_than_utf8(name: Option<&str>) -> Option<String> {
    let utf8 = |name: &String| {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        ["utf8", "unicode"].contains(&plain.to_lowercase().as_str())
    };
    name.map(servers_name).filter(|name| !utf8(name))
}

/// The server's name of an encoding. Other names of it are converted: cp1252, utf-8-sig.
fn servers_name(name: &str) -> String {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    match plain.strip_prefix("cp") {
        Some("866") => "WIN866".into(),
        Some("874") => "WIN874".into(),
        Some("932") => "SJIS".into(),
        Some("936") => "GBK".into(),
        Some("949") => "UHC".into(),
        Some("950") => "BIG5".into(),
        Some("65001") => "UTF8".into(),
        Some(page) if page.len() == 4 && page.starts_with("125") => format!("WIN{page}"),
        _ if plain == "utf8sig" => "UTF8".into(),
        _ => name.to_owned(),
    }
}
