// Go takes functions without a body only where there is a file like this.
